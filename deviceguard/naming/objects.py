"""Names of live objects: which variable or attribute of the user's code holds this very object."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from deviceguard.naming.frames import is_user_code, locals_of, outward

if TYPE_CHECKING:
    from torch import nn

_HIDDEN = frozenset({"_", "__", "___", "__builtins__", "_dg"})
_LIMIT = 20_000


def variable_of(target: object, start: FrameType | None) -> str | None:
    """The user's name for an object, searched from a frame outwards, then in ``__main__``.

    Variables win over attributes of ``self``, those over entries of plain containers. Attribute access is by
    ``__dict__`` only, so that no property or other user code runs.

    Returns:
        ``net``, ``self.net``, ``trainer.model``, ``nets[0]``, or None.
    """
    for names in _scopes(start):
        found = _in_scope(target, names)
        if found:
            return found
    return None


def path_of(module: nn.Module, start: FrameType | None) -> str | None:
    """The way to a module from a variable that holds a model it is part of: ``net.encoder.layers[0]``.

    Variables called ``self`` do not count. Children are looked up in ``_modules``, so that no user code runs.
    """
    for names in _scopes(start):
        for name, value in list(names.items())[:_LIMIT]:
            if name == "self" or name in _HIDDEN or "_modules" not in getattr(value, "__dict__", ()):
                continue
            found = _way_down(name, value, module, set())
            if found is not None:
                return found
    return None


def _way_down(name: str, current: Any, module: nn.Module, seen: set[int]) -> str | None:
    if current is module:
        return name
    seen.add(id(current))
    for child, part in list(current.__dict__.get("_modules", {}).items()):
        if part is not None and id(part) not in seen:
            found = _way_down(joined(name, child), part, module, seen)
            if found is not None:
                return found
    return None


def _scopes(start: FrameType | None) -> Iterator[Mapping[str, Any]]:
    seen: set[int] = set()
    for frame in outward(start):
        if not is_user_code(frame):
            continue
        yield locals_of(frame)
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            if frame.f_globals is not locals_of(frame):
                yield frame.f_globals
    main = sys.modules.get("__main__")
    if main is not None and id(vars(main)) not in seen:
        yield vars(main)


def _in_scope(target: object, names: Mapping[str, Any]) -> str | None:
    items = [(name, value) for name, value in list(names.items())[:_LIMIT] if name not in _HIDDEN]
    for name, value in items:
        if value is target:
            return name
    for name, value in items:
        found = _inside(target, name, value)
        if found:
            return found
    return None


def _inside(target: object, name: str, value: object) -> str | None:
    kind = type(value)
    if kind in (list, tuple):
        return _in_sequence(target, name, value)  # type: ignore[arg-type]
    if kind is dict:
        return _in_mapping(target, name, value)  # type: ignore[arg-type]
    module = getattr(kind, "__module__", "")
    if isinstance(value, type) or module in ("builtins", "torch"):
        return None
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is not dict:
        return None
    for attribute, item in list(attributes.items()):
        if item is target and not attribute.startswith("_"):
            return f"{name}.{attribute}"
    for registry in ("_modules", "_parameters", "_buffers"):
        children = attributes.get(registry)
        if isinstance(children, dict):
            for attribute, item in list(children.items()):
                if item is target:
                    return joined(name, attribute)
    return None


def _in_sequence(target: object, name: str, values: list[Any] | tuple[Any, ...]) -> str | None:
    for index, item in enumerate(values[:256]):
        if item is target:
            return f"{name}[{index}]"
    return None


def _in_mapping(target: object, name: str, values: dict[Any, Any]) -> str | None:
    for key, item in list(values.items())[:256]:
        if item is target:
            return f"{name}[{key!r}]"
    return None


def joined(root: str, path: str) -> str:
    """A root's name and a module path as the user would write them.

    ``net`` and ``layers.3.weight`` give ``net.layers[3].weight``.
    """
    text = root
    for part in path.split("."):
        if part.isdigit():
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}"
        elif part:
            text += f"[{part!r}]"
    return text
