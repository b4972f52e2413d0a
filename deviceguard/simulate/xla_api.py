"""Gives programs a ``torch_xla`` to import while an XLA device is simulated.

The modules are those of the folder ``torch_xla`` beside this file. They are found before an installed torch_xla, whose
runtime would know nothing of simulated tensors, and forgotten when the simulation ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from deviceguard.simulate.errors import NotSimulatedError
from deviceguard.simulate.lazy_graph import LazyGraph
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.patching import Patches

PACKAGE = "torch_xla"
_FOLDER = pathlib.Path(__file__).resolve().parent / PACKAGE


class _Running:
    """The graph and the books of the running simulation."""

    graph: LazyGraph | None = None
    memory: DeviceMemory | None = None


RUNNING = _Running()


def graph() -> LazyGraph:
    """The graph of the running simulation."""
    if RUNNING.graph is None:
        raise RuntimeError("this torch_xla was imported inside deviceguard.simulate('xla') and outlived it")
    return RUNNING.graph


def memory() -> DeviceMemory:
    """The books of the running simulation."""
    if RUNNING.memory is None:
        raise RuntimeError("this torch_xla was imported inside deviceguard.simulate('xla') and outlived it")
    return RUNNING.memory


class _Finder(MetaPathFinder):
    """Finds the stand-in, and says aloud which part of torch_xla it lacks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == PACKAGE:
            return importlib.util.spec_from_file_location(
                fullname, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
            )
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None:
            raise ModuleNotFoundError(f"{fullname} is not simulated by deviceguard.simulate('xla')", name=fullname)
        return found


def install(patches: Patches, books: DeviceMemory, collected: LazyGraph) -> None:
    """Let ``import torch_xla`` find the stand-in.

    Raises:
        RuntimeError: the real torch_xla is imported already, and its device is in use.
    """
    if PACKAGE in sys.modules:
        raise RuntimeError(
            "deviceguard.simulate('xla'): torch_xla is imported already, so this program has a real XLA device "
            "(PJRT_DEVICE=CPU gives it one on any machine). To simulate one instead, begin the simulation before "
            "torch_xla is imported, as `deviceguard run --simulate xla` does."
        )
    RUNNING.graph, RUNNING.memory = collected, books
    patches.on_undo(_forget)
    finder = _Finder()
    place = next((number for number, found in enumerate(sys.meta_path) if found is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(place, finder)
    patches.on_undo(lambda: sys.meta_path.remove(finder))
    patches.on_undo(importlib.invalidate_caches)
    importlib.import_module(f"{PACKAGE}.core.xla_model")  # so that whoever waits for it finds it, whatever is imported


def _forget() -> None:
    RUNNING.graph = RUNNING.memory = None
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


def absent(module: str, names: str) -> Any:
    """A module's ``__getattr__`` that refuses what the real module has and the stand-in has not."""
    known = frozenset(names.split())

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in known:
            raise NotSimulatedError(f"{module}.{name} is not simulated: a simulated XLA device has no answer to it")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
