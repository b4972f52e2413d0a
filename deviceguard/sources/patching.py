"""Replaces attributes and puts back the very objects that were there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """The replaced attributes of one source.

    A patch that somebody else has wrapped since cannot be taken out from under them. It is left in place; the wrapped
    function still calls the original, and the source's ``emit`` no longer reaches anybody. It is marked with what it
    stood for (``_retired``), so that another of our patches, or the simulation's, puts that back and not the patch.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace an attribute with what ``make`` returns for the present one.

        Args:
            owner: class or module.
            name: the attribute; nothing happens where it does not exist.
            make: takes the original function and returns the replacement.
        """
        present = getattr(owner, name, None)
        if present is None:
            return
        before = vars(owner).get(name, _ABSENT)
        after = functools.wraps(present)(make(present))
        vars(after).pop("_retired", None)
        setattr(owner, name, after)
        self._entries.append((owner, name, before, after))

    def restore(self) -> None:
        """Undo all replacements, latest first."""
        for owner, name, before, after in reversed(self._entries):
            if vars(owner).get(name, _ABSENT) is not after:
                after._retired = () if before is _ABSENT else (before,)
                continue
            while (retired := getattr(before, "_retired", None)) is not None:
                before = retired[0] if retired else _ABSENT
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._entries.clear()


class Depth(threading.local):
    """How deep this thread is inside calls of one kind, so that only the outermost counts."""

    value = 0

    def __enter__(self) -> int:
        self.value += 1
        return self.value

    def __exit__(self, *exc: object) -> None:
        self.value -= 1
