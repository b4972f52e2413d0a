"""How a variable came to be: read from the source when something has already gone wrong, at no cost before."""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from deviceguard.findings import Site
from deviceguard.naming.expressions import running_call
from deviceguard.naming.factories import Factory, evaluated, factory_in
from deviceguard.naming.frames import locals_of, origin

_MOVES = frozenset({"to", "cuda", "cpu", "xpu", "half", "float", "double", "bfloat16", "type", "long", "int"})
_DEPTH = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """What the source says of a name.

    Attributes:
        bound_at: the last line before the use that binds the name, or None.
        discarded_at: a line that moves it and throws the result away (``x.to(device)`` as a statement), or None.
        factory: the factory that made it (``torch.zeros``), if the binding is a call of one.
        factory_at: the line of that factory where it stands in a function of the user's that was called, else None.
        placed: True when the call of the factory names a device.
    """

    bound_at: Site | None = None
    discarded_at: Site | None = None
    factory: str | None = None
    factory_at: Site | None = None
    placed: bool = False


def origin_of(expression: str | None, frame: FrameType, line: int, depth: int = _DEPTH) -> Origin:
    """What is known of an expression that stands in a line of a frame.

    Names are followed to what they stand for, arguments of the user's functions to the calls that gave them, and
    ``self.attribute`` to its assignment; for anything else the expression itself is looked at.
    """
    if not expression or depth < 0:
        return Origin()
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return Origin()
    factory = factory_in(node, frame)
    if factory is not None:
        return Origin() if factory.placed else Origin(None, None, factory.name)
    if isinstance(node, ast.Name):
        return _origin_of_name(node.id, frame, line, depth)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return _origin_of_attribute(node.attr, frame)
    if isinstance(node, ast.Call):
        returned = _origin_of_result(node, frame)
        if returned is not None:
            return returned
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        entry = _origin_of_name(expression, frame, line, depth)
        if entry != Origin():
            return entry
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        inner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
        if isinstance(inner, ast.Subscript | ast.Attribute):
            return origin_of(ast.unparse(inner.value), frame, line, depth)
        if isinstance(inner, ast.Name):
            return _origin_of_name(inner.id, frame, line, depth)
    return Origin()


def _origin_of_name(name: str, frame: FrameType, line: int, depth: int) -> Origin:
    """What is known of a variable, or of the entry of a container (``state["exp_avg"]``)."""
    tree = tree_of(frame.f_code.co_filename, frame.f_globals)
    if tree is None:
        return Origin()
    scope: ast.AST = _scope_at(tree, frame.f_code) or tree
    found, value = _search(scope, name, line, frame)
    code = frame.f_code
    if found == Origin() and scope is not tree:
        if name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            return _origin_of_argument(name, frame, depth - 1)
        if name not in code.co_varnames and name not in code.co_cellvars:
            found, value = _search(tree, name, 10**9, frame)
    if isinstance(value, ast.Name | ast.Subscript) and found.bound_at is not None and found.discarded_at is None:
        further = origin_of(ast.unparse(value), frame, found.bound_at.line, depth - 1)
        if further.factory is not None or further.discarded_at is not None:
            return further
    return found


def binding_of(name: str, frame: FrameType, line: int) -> tuple[Site | None, ast.AST | None]:
    """The line of a function that bound a variable last before it is used in a line, and the expression bound to it."""
    tree = tree_of(frame.f_code.co_filename, frame.f_globals)
    if tree is None:
        return None, None
    found, value = _search(_scope_at(tree, frame.f_code) or tree, name, line, frame)
    return found.bound_at, value


def changes(value: ast.AST | None, problem: str) -> bool:
    """True for a call of a method that may change what a problem is about: a tensor's device, or its dtype."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    places = {"to", "cuda", "cpu", "xpu", "type", "type_as"}
    return value.func.attr in (places if problem == "device" else _MOVES)


def _origin_of_argument(name: str, frame: FrameType, depth: int) -> Origin:
    """What is known of an argument that a function of the user's was given, from the line that calls the function."""
    caller = frame.f_back
    while caller is not None and origin(caller.f_code.co_filename) != "user":
        caller = caller.f_back
    text = running_call(caller) if caller is not None else None
    if caller is None or text is None or text.kind != "call":
        return Origin()
    line = caller.f_lineno or 0
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    position = names.index(name) - (names[0] in ("self", "cls")) if name in names else -1
    given = text.argument(position, name)
    if given is None and isinstance(_named(text.callee, caller), functools.partial):
        given = text.callee
    return origin_of(given, caller, line, depth)


def _named(name: str, frame: FrameType) -> Any:
    return locals_of(frame).get(name, frame.f_globals.get(name))


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
            factory = factory_in(part) or _factory_of_name(part, scope)
            if factory is not None:
                line = factory.node.lineno
                text = linecache.getline(code.co_filename, line).strip()
                site = Site(code.co_filename, line, code.co_name, text or None)
                return Origin(None, None, factory.name, site, factory.placed)
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


def _factory_of_name(value: ast.expr, scope: ast.AST) -> Factory | None:
    if not isinstance(value, ast.Name):
        return None
    for node in _own_nodes(scope):
        for target, bound in _bindings(node):
            if isinstance(target, ast.Name) and target.id == value.id and bound is not None:
                return factory_in(bound)
    return None


def _origin_of_attribute(attribute: str, frame: FrameType) -> Origin:
    owner = locals_of(frame).get("self")
    found = _assignment(attribute, type(owner)) if owner is not None else None
    factory = factory_in(found[1]) if found is not None else None
    if found is None or factory is None:
        return Origin(found[0] if found is not None else None)
    return Origin(found[0], None, factory.name, placed=factory.placed)


def assignment_of(attribute: str, cls: type) -> Site | None:
    """The line of a class of the user's that assigns or registers ``self.attribute``, in the constructor if there."""
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
        shared = _shared_assignment(attribute, owner)
        if shared is not None:
            return shared
    return None


def _shared_assignment(attribute: str, cls: type) -> tuple[Site, ast.expr | None] | None:
    """The line in the body of a class that makes a class attribute."""
    function = next(iter(_functions_of(cls)), None)
    filename = function.__code__.co_filename if function is not None else ""
    tree = tree_of(filename, function.__globals__) if function is not None and origin(filename) == "user" else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            for part in node.body:
                for target, value in _bindings(part):
                    if _names(target, attribute):
                        text = linecache.getline(filename, target.lineno).strip()
                        return Site(filename, target.lineno, cls.__qualname__, text or None), value
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
        if isinstance(node, ast.Call) and _registers(node, attribute):
            text = linecache.getline(code.co_filename, node.lineno).strip()
            return Site(code.co_filename, node.lineno, code.co_name, text or None), None
    return None


def _registers(node: ast.Call, attribute: str) -> bool:
    """True for ``self.register_buffer("attribute", ...)`` and its like."""
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in ("register_buffer", "register_parameter", "add_module", "register_module")
        and isinstance(function.value, ast.Name)
        and function.value.id == "self"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == attribute
    )


def _is_attribute_of_self(target: ast.AST, attribute: str) -> bool:
    return (
        isinstance(target, ast.Attribute)
        and target.attr == attribute
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


def _search(scope: ast.AST, name: str, line: int, frame: FrameType) -> tuple[Origin, ast.AST | None]:
    """What a scope says of a name up to a line, and the expression that was last bound to it."""
    bound: tuple[int, ast.AST | None] | None = None
    discarded: int | None = None
    branches, passed_over = _in_branches(scope), _not_taken(scope, frame)
    for node in _own_nodes(scope):
        if id(node) in passed_over:
            continue
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
        return Origin(), None
    if (
        bound is not None
        and discarded is not None
        and discarded < bound[0]
        and not _in_same_loop(scope, bound[0], discarded)
    ):
        discarded = None
    last = bound[1] if bound else None
    factory = factory_in(last, frame)
    found = Origin(
        _site(bound[0], frame) if bound else None,
        _site(discarded, frame) if discarded else None,
        factory.name if factory is not None else None,
        placed=factory is not None and factory.placed,
    )
    return found, last


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
    """True when the target binds the name itself, not an item or attribute of it; a name may be ``state["sum"]``."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(_names(part, name) for part in target.elts)
    if isinstance(target, ast.Starred):
        return _names(target.value, name)
    if isinstance(target, ast.Subscript):
        return ast.unparse(target) == name
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


def _not_taken(scope: ast.AST, frame: FrameType) -> set[int]:
    """Identities of the nodes in branches that the value of a plain name rules out: under ``if debug:``."""
    found: set[int] = set()
    for node in _own_nodes(scope):
        taken = evaluated(node.test, frame) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and isinstance(taken, bool):
            found |= {id(inner) for part in (node.orelse if taken else node.body) for inner in ast.walk(part)}
    return found


def _is_move_of(value: ast.expr, name: str) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _MOVES
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id == name
    )


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
