"""Which variable keeps the graphs of earlier steps alive, and the line that adds to it."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from deviceguard.findings import Site
from deviceguard.naming.frames import is_user_code, locals_of, outward
from deviceguard.rules.syn.graph_marks import reach

_ADDS = frozenset({"append", "appendleft", "extend", "add", "insert", "update", "setdefault"})
_MOST_ITEMS = 64
_MOST_NAMES = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A variable that keeps graphs.

    Attributes:
        name: ``losses``, ``self.history['loss']``.
        value: what it is now; not to be kept.
        is_container: True for a list and the like, False for a tensor whose own graph grows.
        line: the statement that adds to it, or None.
        added: the expression that is added, or None.
    """

    name: str
    value: Any
    is_container: bool
    line: Site | None = None
    added: str | None = None


def holder_from(frame: FrameType | None) -> Holder | None:
    """The variable of the running functions that keeps graphs of more than one step."""
    for scope, holding in _scopes(frame):
        for name, value in list(scope.items())[:_MOST_NAMES]:
            found = _held(name, value)
            if found is not None:
                return _with_line(found, holding)
    return None


def _scopes(frame: FrameType | None) -> Iterator[tuple[Mapping[str, Any], FrameType | None]]:
    seen: set[int] = set()
    for candidate in outward(frame):
        if is_user_code(candidate):
            yield locals_of(candidate), candidate
            if id(candidate.f_globals) not in seen:
                seen.add(id(candidate.f_globals))
                yield candidate.f_globals, candidate
    main = sys.modules.get("__main__")
    if main is not None and id(vars(main)) not in seen:
        yield vars(main), frame


def _held(name: str, value: Any, depth: int = 2) -> Holder | None:
    if _is_tensor(value):
        return Holder(name, value, is_container=False) if reach(value) > 1 else None
    if isinstance(value, list | tuple | deque | set):
        return _held_in(name, list(value)[-_MOST_ITEMS:], value)
    if isinstance(value, dict):
        return _held_in(name, list(value.values())[-_MOST_ITEMS:], value) or _below(name, value, depth)
    if depth and _is_plain_object(value):
        attributes = vars(value)
        for attribute, item in list(attributes.items())[:_MOST_NAMES]:
            found = _held(f"{name}.{attribute}", item, depth - 1)
            if found is not None:
                return found
    return None


def _held_in(name: str, items: list[Any], value: Any) -> Holder | None:
    steps = [item for item in items if _is_tensor(item) and item.grad_fn is not None and reach(item) > 0]
    return Holder(name, value, is_container=True) if len(steps) > 1 else None


def _below(name: str, value: dict[Any, Any], depth: int) -> Holder | None:
    if not depth:
        return None
    for key, item in list(value.items())[:_MOST_ITEMS]:
        found = _held(f"{name}[{key!r}]", item, depth - 1)
        if found is not None:
            return found
    return None


def _is_tensor(value: Any) -> bool:
    return hasattr(type(value), "grad_fn") and hasattr(type(value), "untyped_storage")


def _is_plain_object(value: Any) -> bool:
    kind = type(value)
    module = getattr(kind, "__module__", "")
    if isinstance(value, type) or module == "builtins" or module.split(".")[0] in ("torch", "numpy"):
        return False
    return type(getattr(value, "__dict__", None)) is dict


def _with_line(holder: Holder, frame: FrameType | None) -> Holder:
    if frame is None:
        return holder
    import executing

    try:
        source = executing.Source.for_frame(frame)
        tree = source.tree
    except Exception:
        return holder
    if tree is None:
        return holder
    added = [(abs(node.lineno - frame.f_lineno), node, text) for node, text in _additions(tree, holder.name)]
    if not added:
        return holder
    _, node, text = min(added, key=lambda entry: entry[0])
    lines = source.lines
    line = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else None
    return dataclasses.replace(
        holder, line=Site(frame.f_code.co_filename, node.lineno, frame.f_code.co_name, line), added=text
    )


def _additions(tree: ast.AST, name: str) -> Iterator[tuple[Any, str | None]]:
    """The nodes that add to a variable, with the text of what they add."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
            if ast.unparse(node.func.value) == name:
                yield node, ast.unparse(node.args[-1]) if node.args else None
        elif isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            yield node, ast.unparse(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from _assigned(node, name)


def _assigned(node: ast.Assign, name: str) -> Iterator[tuple[Any, str | None]]:
    target = node.targets[0]
    if isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
        yield node, ast.unparse(node.value)
    elif ast.unparse(target) == name and any(ast.unparse(part) == name for part in _expressions(node.value)):
        yield node, _other_side(node.value, name)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute | ast.Subscript))


def _other_side(value: ast.AST, name: str) -> str | None:
    if not isinstance(value, ast.BinOp):
        return None
    sides = [side for side in (value.left, value.right) if not any(ast.unparse(p) == name for p in _expressions(side))]
    return ast.unparse(sides[0]) if len(sides) == 1 and isinstance(sides[0], ast.Name) else None
