"""Clipping of gradients: ``clip_grad_norm_`` and ``clip_grad_value_``."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.nn import utils

from deviceguard.backends.arrivals import after_import
from deviceguard.events import Event, GradientsClipped
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_")


class Clipping(Source):
    """Emits before a clipping function runs. An iterator of the user's is read once and handed on as a list."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({GradientsClipped})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._watch()
        _LIVE.add(self)
        after_import(_watch_again)

    def _watch(self) -> None:
        for owner in (utils, utils.clip_grad):
            for name in _FUNCTIONS:
                self._patches.replace(owner, name, functools.partial(self._clip, name))

    def uninstall(self) -> None:  # noqa: D102
        _LIVE.discard(self)
        self._patches.restore()

    def _clip(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or GradientsClipped not in self.wanted:
                return original(parameters, limit, *args, **kwargs)
            read, is_iterator = _read(parameters)
            self.tell(GradientsClipped, lambda: GradientsClipped(name, read, is_iterator and not read, _number(limit)))
            given = read if is_iterator and read else parameters  # PyTorch warns about an empty generator itself
            return original(given, limit, *args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            word = "max_norm" if name == "clip_grad_norm_" else "clip_value"
            if len(given) + ("parameters" in kwargs) + (word in kwargs) < 2:
                return original(*args, **kwargs)  # which says what is missing
            parameters = given.pop(0) if given else kwargs.pop("parameters")
            limit = given.pop(0) if given else kwargs.pop(word)
            return clip(parameters, limit, *given, **kwargs)

        return called


_LIVE: weakref.WeakSet[Clipping] = weakref.WeakSet()
"""The sources that are installed now."""


def _watch_again() -> None:
    """A backend's package may put a clipping function of its own in the place of the one that is watched."""
    for source in list(_LIVE):
        source._watch()


def _read(parameters: Any) -> tuple[Sequence[torch.Tensor], bool]:
    """The parameters, and whether they came from an iterator that reading has used up."""
    if isinstance(parameters, torch.Tensor):
        return (parameters,), False
    is_iterator = iter(parameters) is parameters
    return list(parameters), is_iterator


def _number(limit: Any) -> float:
    try:
        return math.nan if isinstance(limit, torch.Tensor) else float(limit)
    except (TypeError, ValueError):
        return math.nan
