"""The host's clocks, read by the user's own code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from deviceguard.events import ClockRead, Event
from deviceguard.naming.frames import is_user_code
from deviceguard.sources.device_queue import QUEUE
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_CLOCKS = ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "monotonic_ns")


class Clocks(Source):
    """Replaces the functions of ``time``. A program that bound one to a name of its own before is not seen."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ClockRead})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        for name in _CLOCKS:
            self._patches.replace(time, name, self._around(f"time.{name}()"))

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _around(self, call: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def read() -> Any:
                if torch.compiler.is_compiling():
                    return original()
                now = original()
                if is_user_code(sys._getframe(1)):
                    self.tell(ClockRead, lambda: ClockRead(call, QUEUE.clock_read()))
                return now

            return read

        return make
