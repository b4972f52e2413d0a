"""Backward passes: ``Tensor.backward``, ``autograd.backward``, ``autograd.grad``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from deviceguard.events import BackwardEnded, BackwardStarted, Event
from deviceguard.sources.patching import Depth, Patches
from deviceguard.sources.source import Emit, Source


class Backward(Source):
    """Emits once around the outermost call; no backward hook is installed anywhere."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({BackwardStarted, BackwardEnded})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._running = Depth()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(torch.Tensor, "backward", lambda original: self._around(original, accumulates=True))
        self._patches.replace(torch.autograd, "backward", lambda original: self._around(original, accumulates=True))
        self._patches.replace(torch.autograd, "grad", lambda original: self._around(original, accumulates=False))

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _around(self, original: Callable[..., Any], accumulates: bool) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self.wanted.isdisjoint(self.provides):
                return original(*args, **kwargs)
            with self._running as depth:
                if depth > 1:
                    return original(*args, **kwargs)
                roots = _roots(args[0] if args else kwargs.get("tensors", kwargs.get("outputs")))
                self.tell(BackwardStarted, lambda: BackwardStarted(roots, accumulates))
                result = original(*args, **kwargs)
            self.tell(BackwardEnded, lambda: BackwardEnded(roots, accumulates))
            return result

        return backward


def _roots(given: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(given, torch.Tensor):
        return (given,)
    return tuple(given) if isinstance(given, list | tuple) else ()  # an iterator is the user's to consume
