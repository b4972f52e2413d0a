"""How a variable came to be: read from the source when something has already gone wrong, at no cost before."""

from __future__ import annotations

import ast
import dataclasses
import linecache
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from deviceguard.findings import Site
from deviceguard.naming.frames import locals_of, origin

_MOVES = frozenset({"to", "cuda", "cpu", "xpu", "half", "float", "double", "bfloat16", "type", "long", "int"})
_FACTORIES = frozenset(
    {
        *("tensor", "as_tensor", "zeros", "ones", "full", "empty", "arange", "linspace", "logspace", "eye", "rand"),
        *("randn", "randint", "randperm", "normal", "from_numpy", "tril_indices", "triu_indices", "FloatTensor"),
        *("LongTensor", "Tensor", "scalar_tensor", "bernoulli", "multinomial", "hann_window", "hamming_window"),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """What the source says of a name.

    Attributes:
        bound_at: the last line before the use that binds the name, or None.
        discarded_at: a line that moves it and throws the result away (``x.to(device)`` as a statement), or None.
        factory: the host factory that made it (``torch.zeros``), if the binding is a call of one without a device.
        factory_at: the line of that factory where it stands in a function of the user's that was called, else None.
    """

    bound_at: Site | None = None
    discarded_at: Site | None = None
    factory: str | None = None
    factory_at: Site | None = None


def origin_of(expression: str | None, frame: FrameType, line: int) -> Origin:
    """What is known of an expression that stands in a line of a frame.

    Names and ``self.attribute`` are followed; for anything else the expression itself is looked at.
    """
    if not expression:
        return Origin()
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return Origin()
    factory = _host_factory(node)
    if factory:
        return Origin(None, None, factory)
    if isinstance(node, ast.Name):
        return _origin_of_name(node.id, frame, line)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return _origin_of_attribute(node.attr, frame)
    if isinstance(node, ast.Call):
        returned = _origin_of_result(node, frame)
        if returned is not None:
            return returned
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        inner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
        if isinstance(inner, ast.Subscript | ast.Attribute):
            return origin_of(ast.unparse(inner.value), frame, line)
        if isinstance(inner, ast.Name):
            return _origin_of_name(inner.id, frame, line)
    return Origin()


def _origin_of_name(name: str, frame: FrameType, line: int) -> Origin:
    tree = tree_of(frame.f_code.co_filename, frame.f_globals)
    if tree is None:
        return Origin()
    scope: ast.AST = _scope_at(tree, frame.f_code) or tree
    found = _search(scope, name, line, frame)
    own = name in frame.f_code.co_varnames or name in frame.f_code.co_cellvars
    if found == Origin() and scope is not tree and not own:
        found = _search(tree, name, 10**9, frame, module_level=True)
    return found


def _origin_of_result(node: ast.Call, frame: FrameType) -> Origin | None:
    """What the source of a called function of the user's says of what it returns; None when it says nothing."""
    function = _function_called(node.func, frame)
    code = getattr(function, "__code__", None)
    tree = tree_of(code.co_filename, function.__globals__) if isinstance(code, CodeType) and function else None
    scope = _scope_at(tree, code) if tree is not None and isinstance(code, CodeType) else None
    if scope is None or not isinstance(code, CodeType):
        return None
    for found in _own_nodes(scope):
        for part in _parts(found.value) if isinstance(found, ast.Return) else ():
            factory = _host_factory(part) or _factory_of_name(part, scope)
            if factory:
                text = linecache.getline(code.co_filename, part.lineno).strip()
                return Origin(None, None, factory, Site(code.co_filename, part.lineno, code.co_name, text or None))
    return None


def _function_called(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        return locals_of(frame).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = locals_of(frame).get(node.value.id, frame.f_globals.get(node.value.id))
        for cls in type(owner).__mro__:
            if node.attr in vars(cls):
                found = vars(cls)[node.attr]
                return getattr(found, "__func__", found)
    return None


def _parts(value: ast.expr | None) -> list[ast.expr]:
    if isinstance(value, ast.Tuple | ast.List):
        return list(value.elts)
    return [] if value is None else [value]


def _factory_of_name(value: ast.expr, scope: ast.AST) -> str | None:
    if not isinstance(value, ast.Name):
        return None
    for node in _own_nodes(scope):
        for target, bound in _bindings(node):
            if isinstance(target, ast.Name) and target.id == value.id and bound is not None:
                return _host_factory(bound)
    return None


def _origin_of_attribute(attribute: str, frame: FrameType) -> Origin:
    owner = locals_of(frame).get("self")
    found = _assignment(attribute, type(owner)) if owner is not None else None
    return Origin() if found is None else Origin(found[0], None, _host_factory(found[1]))


def assignment_of(attribute: str, cls: type) -> Site | None:
    """The line of a class of the user's that assigns ``self.attribute``, in the constructor if it does so there."""
    found = _assignment(attribute, cls)
    return None if found is None else found[0]


def _assignment(attribute: str, cls: type) -> tuple[Site, ast.expr | None] | None:
    for owner in cls.__mro__:
        for function in _functions_of(owner):
            code = function.__code__
            tree = tree_of(code.co_filename, function.__globals__) if origin(code.co_filename) == "user" else None
            scope = _scope_at(tree, code) if tree is not None else None
            found = _assignment_in(scope, attribute, code) if scope is not None else None
            if found is not None:
                return found
    return None


def _functions_of(cls: type) -> list[FunctionType]:
    """The plain methods of a class, its constructor first."""
    found = [item for item in vars(cls).values() if isinstance(item, FunctionType)]
    return sorted(found, key=lambda item: item.__name__ != "__init__")


def _assignment_in(scope: ast.AST, attribute: str, code: CodeType) -> tuple[Site, ast.expr | None] | None:
    for node in _own_nodes(scope):
        for target, value in _bindings(node):
            if _is_attribute_of_self(target, attribute):
                text = linecache.getline(code.co_filename, target.lineno).strip()
                return Site(code.co_filename, target.lineno, code.co_name, text or None), value
    return None


def _is_attribute_of_self(target: ast.AST, attribute: str) -> bool:
    return (
        isinstance(target, ast.Attribute)
        and target.attr == attribute
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


def _search(scope: ast.AST, name: str, line: int, frame: FrameType, module_level: bool = False) -> Origin:
    bound: tuple[int, ast.AST | None] | None = None
    discarded: int | None = None
    branches = _in_branches(scope)
    for node in _own_nodes(scope):
        for target, value in _bindings(node):
            if _is_running(node, line):
                continue  # the value is used before this statement binds the name
            if id(node) in branches and value is not None and _is_move_of(value, name):
                continue  # the value is not where such a move would have put it: this branch was not taken
            at: int = getattr(node, "lineno", 0) or getattr(target, "lineno", 0)
            if _names(target, name) and at <= line and (bound is None or at >= bound[0]):
                bound = (at, value)
        if isinstance(node, ast.Expr) and _is_move_of(node.value, name) and node.lineno <= line:
            discarded = max(discarded or 0, node.lineno)
    if bound is None and discarded is None:
        return Origin()
    if (
        bound is not None
        and discarded is not None
        and discarded < bound[0]
        and not _in_same_loop(scope, bound[0], discarded)
    ):
        discarded = None
    return Origin(
        _site(bound[0], frame) if bound else None,
        _site(discarded, frame) if discarded else None,
        _host_factory(bound[1]) if bound and bound[1] is not None else None,
    )


def _in_same_loop(scope: ast.AST, one: int, other: int) -> bool:
    return any(
        node.lineno <= min(one, other) and max(one, other) <= (node.end_lineno or 0)
        for node in _own_nodes(scope)
        if isinstance(node, ast.For | ast.While) and node.lineno != one
    )


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope without those of functions and classes inside it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack.extend(ast.iter_child_nodes(node))


def _bindings(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        for target in node.targets:
            both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            if both and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                pairs += list(zip(target.elts, node.value.elts, strict=True))  # type: ignore[attr-defined]
            else:
                pairs.append((target, node.value))
        return pairs
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return [(node.target, node.value)]
    if isinstance(node, ast.For | ast.AsyncFor):
        return [(node.target, None)]
    if isinstance(node, ast.comprehension):
        return [(node.target, None)]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [(item.optional_vars, None) for item in node.items if item.optional_vars is not None]
    return []


def _names(target: ast.AST, name: str) -> bool:
    """True when the target binds the name itself, not an item or attribute of it."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_names(part, name) for part in target.elts)
    if isinstance(target, ast.Starred):
        return _names(target.value, name)
    return isinstance(target, ast.Name) and target.id == name


def _is_running(node: ast.AST, line: int) -> bool:
    """True for an assignment that spans the line in question."""
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.lineno <= line <= (
        node.end_lineno or 0
    )


def _in_branches(scope: ast.AST) -> set[int]:
    """Identities of the nodes that stand under an ``if`` of the scope."""
    return {
        id(inner)
        for node in _own_nodes(scope)
        if isinstance(node, ast.If)
        for part in (*node.body, *node.orelse)
        for inner in ast.walk(part)
    }


def _is_move_of(value: ast.expr, name: str) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _MOVES
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id == name
    )


def _host_factory(value: ast.AST | None) -> str | None:
    """The factory an expression calls without a device, looking through method calls on its result."""
    while isinstance(value, ast.Call):
        if any(keyword.arg == "device" for keyword in value.keywords):
            return None
        called = value.func
        if isinstance(called, ast.Attribute):
            if isinstance(called.value, ast.Name) and called.value.id == "torch" and called.attr in _FACTORIES:
                return f"torch.{called.attr}"
            if called.attr in _MOVES:
                return None
            value = called.value
        else:
            return None
    return None


_trees: dict[str, ast.Module | None] = {}


def tree_of(filename: str, module_globals: dict[str, Any]) -> ast.Module | None:
    """The parsed source of a file, read once; None where there is none."""
    if filename not in _trees:
        lines = linecache.getlines(filename, module_globals)
        try:
            _trees[filename] = ast.parse("".join(lines)) if lines else None
        except SyntaxError:
            _trees[filename] = None
    return _trees[filename]


def _scope_at(tree: ast.Module, code: CodeType) -> ast.AST | None:
    if code.co_name == "<module>":
        return None
    best: ast.AST | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or 0):
                best = node
    return best


def _site(line: int, frame: FrameType) -> Site:
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return Site(frame.f_code.co_filename, line, frame.f_code.co_name, text or None)


def statement_at(frame: FrameType) -> ast.stmt | None:
    """The innermost statement that spans the line a frame is running."""
    tree = tree_of(frame.f_code.co_filename, frame.f_globals)
    if tree is None:
        return None
    line = frame.f_lineno
    spanning = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(spanning, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)
