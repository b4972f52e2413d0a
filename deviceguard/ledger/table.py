"""Records of objects by identity, under weak references."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

_Object = TypeVar("_Object")
_Record = TypeVar("_Record")


class _Entry(weakref.ref[Any]):
    """A weak reference that knows where it is kept, and what is known of the object."""

    __slots__ = ("key", "record")
    key: int
    record: Any


class Table(Generic[_Object, _Record]):
    """What is known of objects, for as long as they live.

    As ``torch.utils.weak.WeakIdKeyDictionary``, which makes an object and runs three functions of Python for each look
    at it; this is asked for each parameter that is made. An identity is looked up as the number it is: the entry of an
    object is removed before its memory can be another's.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._remove = _remover(self._entries)

    def get(self, obj: _Object) -> _Record | None:
        """The record of an object; None where there is none."""
        entry = self._entries.get(id(obj))
        return None if entry is None else entry.record

    def __setitem__(self, obj: _Object, record: _Record) -> None:
        key = id(obj)
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(obj, self._remove)
            entry.key = key
            self._entries[key] = entry
        entry.record = record

    def __contains__(self, obj: _Object) -> bool:
        return id(obj) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[_Object]:
        return (obj for obj, _ in self.items())

    def items(self) -> Iterator[tuple[_Object, _Record]]:
        """The objects that are alive, with their records, in the order in which they became known."""
        for entry in list(self._entries.values()):
            obj = entry()
            if obj is not None:
                if hasattr(obj, "_fix_weakref"):
                    obj._fix_weakref()  # a tensor that only C++ held has its Python object back
                yield obj, entry.record


def _remover(entries: dict[int, _Entry]) -> Callable[[_Entry], None]:
    """Takes away the entry of an object that is gone; it holds no table."""

    def remove(entry: _Entry) -> None:
        if entries.get(entry.key) is entry:
            del entries[entry.key]

    return remove
