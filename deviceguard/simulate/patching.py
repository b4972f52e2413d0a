"""Replace attributes, and put back the very objects that were there."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

_ABSENT = object()


class Patches:
    """A stack of replacements, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class; an inherited one is shadowed and uncovered again."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append(lambda: _put_back(owner, name, before))

    def set_existing(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute that some versions of PyTorch do not have; where it is missing, do nothing."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Replace an entry of a dictionary."""
        before = mapping.get(key, _ABSENT)
        mapping[key] = value
        self._undo.append(lambda: mapping.__delitem__(key) if before is _ABSENT else mapping.__setitem__(key, before))

    def on_undo(self, action: Callable[[], None]) -> None:
        """Run an action when everything is put back."""
        self._undo.append(action)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()


def _put_back(owner: Any, name: str, before: Any) -> None:
    """Put an attribute back; a patch that was given up meanwhile is marked with what it stood for."""
    while (retired := getattr(before, "_retired", None)) is not None:
        before = retired[0] if retired else _ABSENT
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
