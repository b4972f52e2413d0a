"""What a file of the user's says: scopes, bindings, and by which names it calls PyTorch and its device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from deviceguard.fixes.edits import Span, Start

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_MOVES = frozenset({"to", "cuda", "cpu", "half", "float", "double", "bfloat16"})
_CONVERSIONS = _MOVES | {"load_state_dict", "to_empty", "apply", "type"}


class Source:
    """A parsed file.

    Args:
        text: its text.

    Raises:
        SyntaxError: the text is no Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self._parents = {id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: ast.expr) -> Span:
        """The place of an expression."""
        last = node.end_lineno or node.lineno
        return (
            node.lineno,
            self._column(node.lineno, node.col_offset),
            last,
            self._column(last, node.end_col_offset or 0),
        )

    def start(self, node: ast.stmt) -> Start:
        """The beginning of a statement, of a decorated one its decorator."""
        return node.lineno, self._column(node.lineno, node.col_offset)

    def _column(self, line: int, offset: int) -> int:
        """A column in characters; the parser counts bytes."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return len(text.encode()[:offset].decode(errors="ignore"))

    def scope_at(self, line: int) -> Scope:
        """The innermost function around a line, or the file."""
        found: Scope = self.tree
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _spans(node, line):
                found = node
        return found

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement around a line."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt) and _spans(node, line)]
        return max(found, key=lambda node: (node.lineno, node.col_offset), default=None)

    def block_of(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements among which one stands."""
        parent = self._parents.get(id(node))
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and any(other is node for other in block):
                return block
        return []

    def loops_around(self, line: int) -> list[ast.For]:
        """The ``for`` loops around a line, innermost first."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.For) and _spans(node, line)]
        return sorted(found, key=lambda node: -node.lineno)

    def binding(self, name: str, line: int) -> tuple[ast.stmt, ast.expr | None] | None:
        """The statement that gives a name the value it has in a line, and the expression of that value.

        None where it cannot be told: parameters of functions, several candidates, and what is bound in a branch. A move
        of the name itself in a branch was not taken.
        """
        scope = self.scope_at(line)
        found = [entry for entry in self._bindings(scope, name) if entry[0].lineno < line]
        if not found and scope is not self.tree:
            if name in _parameters(scope):
                return None
            found = list(self._bindings(self.tree, name))
            return found[0] if len(found) == 1 else None
        return found[-1] if found else None

    def _bindings(self, scope: Scope, name: str) -> Iterator[tuple[ast.stmt, ast.expr | None]]:
        found = []
        for node in own_statements(scope):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                value = _value_for(node.targets[0], node.value, name)
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value is not None:
                value = (node.value,)
            elif isinstance(node, ast.For) and name in _names_in(node.target):
                value = (None,)
            else:
                continue
            if value and not (self._is_in_branch(node, scope) and value[0] is not None and _moves(value[0], name)):
                found.append((node, value[0]))
        yield from sorted(found, key=lambda entry: entry[0].lineno)

    def _is_in_branch(self, node: ast.AST, scope: ast.AST) -> bool:
        while (parent := self._parents.get(id(node))) is not None and parent is not scope:
            if isinstance(parent, ast.If):
                return True
            node = parent
        return False

    def device(self, line: int) -> str | None:
        """How a statement in a line may write the device of the file; None where that is not certain."""
        written = [text for node in ast.walk(self.tree) if (text := _device_in(node)) is not None]
        names = sorted({text for text in written if text.isidentifier() and self._is_device(text, line)})
        if len(names) == 1 and self._is_visible(names[0], line):
            return names[0]
        literals = sorted({text for text in written if not text.isidentifier()})
        return literals[0] if not names and len(literals) == 1 else None

    def _is_device(self, name: str, line: int) -> bool:
        """True for a name that says so itself, or is bound to a call of ``torch.device`` or to a text."""
        if "dev" in name.lower():
            return True
        found = self.binding(name, line) or next(iter(self._bindings(self.tree, name)), None)
        value = found[1] if found is not None else None
        return value is not None and ("torch.device(" in ast.unparse(value) or _is_text(value))

    def _is_visible(self, name: str, line: int) -> bool:
        scope = self.scope_at(line)
        if scope is not self.tree:
            local = name in _parameters(scope) or any(node.lineno < line for node, _ in self._bindings(scope, name))
            return local or any(True for _ in self._bindings(self.tree, name))
        return any(node.lineno < line for node, _ in self._bindings(scope, name))

    def torch_nn(self) -> str | None:
        """How the file writes ``torch.nn``."""
        return self._imported("torch.nn") or self._below("torch", "nn")

    def torch(self) -> str | None:
        """How the file writes ``torch``."""
        return self._imported("torch")

    def _below(self, module: str, part: str) -> str | None:
        name = self._imported(module)
        return f"{name}.{part}" if name else None

    def _imported(self, module: str) -> str | None:
        package, _, part = module.rpartition(".")
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == module and (alias.asname or "." not in module):
                        return alias.asname or alias.name
            if isinstance(node, ast.ImportFrom) and package and node.module == package and not node.level:
                for alias in node.names:
                    if alias.name == part:
                        return alias.asname or alias.name
        return None


def own_statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from own_statements(node)


def converts(statement: ast.stmt, model: str) -> bool:
    """True for a statement in which a model is moved, converted, loaded or given new parts."""
    for node in ast.walk(statement):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in _CONVERSIONS and ast.unparse(called.value) == model:
            return True
        if isinstance(node, ast.Assign):
            targets = [ast.unparse(target) for target in node.targets]
            if any(text == model or text.startswith((f"{model}.", f"{model}[")) for text in targets):
                return True
    return False


def mentions(statement: ast.AST, name: str) -> bool:
    """True where a name or attribute is written anywhere in a statement."""
    return any(isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == name for node in ast.walk(statement))


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _parameters(scope: Scope) -> set[str]:
    if isinstance(scope, ast.Module):
        return set()
    given = scope.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {argument.arg for argument in named if argument is not None}


def _value_for(target: ast.expr, value: ast.expr, name: str) -> tuple[ast.expr | None] | None:
    """The expression a target gives to a name, in a tuple; (None,) where it is unpacked; None where it gives none."""
    if ast.unparse(target) == name:
        return (value,)
    if not isinstance(target, ast.Tuple | ast.List):
        return None
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        return next(((part,) for one, part in pairs if ast.unparse(one) == name), None)
    return (None,) if name in _names_in(target) else None


def _names_in(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _moves(value: ast.expr, name: str) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _MOVES
        and ast.unparse(value.func.value) == name
    )


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _device_in(node: ast.AST) -> str | None:
    """The device a call names: a variable, or a text such as ``"cuda"`` with its quotes; None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    given = next((keyword.value for keyword in node.keywords if keyword.arg == "device"), None)
    if given is None and isinstance(node.func, ast.Attribute) and node.func.attr == "to" and node.args:
        given = node.args[0]
    if isinstance(given, ast.Name) and "dtype" not in given.id:
        return given.id
    if isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value.split(":")[0] != "cpu":
        return f'"{given.value}"'
    return None
