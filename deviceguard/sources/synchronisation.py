"""Explicit waits for a device, a stream or an event, and memory given back to the driver: functions no mode sees."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar

import torch

from deviceguard.backends.blocking import Wait, all_waits
from deviceguard.events import CacheEmptied, Event, Synchronized
from deviceguard.sources.covering import COVER
from deviceguard.sources.device_queue import QUEUE
from deviceguard.sources.patching import Depth, Patches
from deviceguard.sources.source import Emit, Source


class Synchronisation(Source):
    """Replaces the functions that the present backends name. A wait that calls another one counts once."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({Synchronized, CacheEmptied})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._depth = Depth()

    def install(self) -> None:  # noqa: D102
        for wait in all_waits():
            found = wait.owner()
            if found is not None:
                self._replace(*found, wait)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _replace(self, owner: Any, name: str, wait: Wait) -> None:
        try:
            self._patches.replace(owner, name, lambda original: self._around(original, wait))
        except TypeError:
            pass  # an immutable type of PyTorch's C++ side

    def _around(self, original: Callable[..., Any], wait: Wait) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            start = perf_counter()
            with self._depth as depth:
                result = COVER.run(original, args, kwargs)
            if depth == 1:
                self._note(wait, result, perf_counter() - start, kwargs)
            return result

        return waiting

    def _note(self, wait: Wait, result: Any, seconds: float, kwargs: dict[str, Any]) -> None:
        if (wait.scope == "query" and not result) or (wait.scope == "marker" and not kwargs.get("wait")):
            return
        needed = bool(QUEUE.copies)
        QUEUE.settle()
        if wait.scope == "cache":
            self.tell(CacheEmptied, lambda: CacheEmptied(wait.call, seconds))
        elif wait.scope != "marker" and Synchronized in self.wanted:
            self.emit(Synchronized(wait.call, wait.scope, seconds, needed))
