"""Tells when the program has imported torch, so that nothing of it is imported before the program asks for it.

A script may set ``OMP_NUM_THREADS`` or ``CUDA_VISIBLE_DEVICES`` before its ``import torch``; importing it earlier would
change the run.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` once, as soon as the module ``name`` is completely imported; now if it is already."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds nothing itself: it has the other finders find the module and wraps the loader they name."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = _found_by_others(fullname, path, target)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
        else:
            spec.loader = _Announcing(spec.loader, self._action)
        return spec


def _found_by_others(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


class _Announcing(Loader):
    """Loads with the original loader, which is all that remains visible afterwards."""

    def __init__(self, original: Any, action: Callable[[], None]) -> None:
        self._original = original
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        module.__loader__ = self._original
        self._original.exec_module(module)
        self._action()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
