"""How a variable came to be: read from the source when something has already gone wrong, at no cost before."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from deviceguard.findings import Site

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
    """

    bound_at: Site | None = None
    discarded_at: Site | None = None
    factory: str | None = None


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
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        inner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
        if isinstance(inner, ast.Subscript | ast.Attribute):
            return origin_of(ast.unparse(inner.value), frame, line)
        if isinstance(inner, ast.Name):
            return _origin_of_name(inner.id, frame, line)
    return Origin()


def _origin_of_name(name: str, frame: FrameType, line: int) -> Origin:
    tree = _tree(frame.f_code.co_filename, frame.f_globals)
    if tree is None:
        return Origin()
    scope: ast.AST = _scope_at(tree, frame.f_code) or tree
    found = _search(scope, name, line, frame)
    if found == Origin() and scope is not tree:
        found = _search(tree, name, 10**9, frame, module_level=True)
    return found


def _origin_of_attribute(attribute: str, frame: FrameType) -> Origin:
    owner = frame.f_locals.get("self")
    for cls in type(owner).__mro__ if owner is not None else ():
        try:
            file = inspect.getsourcefile(cls)
            lines, first = inspect.getsourcelines(cls)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            for target, value in _bindings(node):
                if (
                    isinstance(target, ast.Attribute)
                    and target.attr == attribute
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    at = target.lineno + first - 1
                    text = lines[target.lineno - 1].strip() if target.lineno <= len(lines) else None
                    return Origin(Site(file or "?", at, cls.__qualname__, text), None, _host_factory(value))
    return Origin()


def _search(scope: ast.AST, name: str, line: int, frame: FrameType, module_level: bool = False) -> Origin:
    bound: tuple[int, ast.AST | None] | None = None
    discarded: int | None = None
    for node in _own_nodes(scope):
        for target, value in _bindings(node):
            at: int = getattr(node, "lineno", 0) or getattr(target, "lineno", 0)
            if _names(target, name) and at <= line and (bound is None or at >= bound[0]):
                bound = (at, value)
        if isinstance(node, ast.Expr) and _is_discarded_move(node.value, name) and node.lineno <= line:
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
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))


def _is_discarded_move(value: ast.expr, name: str) -> bool:
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


def _tree(filename: str, module_globals: dict[str, Any]) -> ast.Module | None:
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
