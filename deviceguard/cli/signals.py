"""Lets the report be written when a signal ends the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

FATAL = ("SIGTERM", "SIGHUP")


def before_death(action: Callable[[int], None]) -> None:
    """Call ``action`` when a signal is about to end this process, then let it end as it would have.

    Signals that the caller ignores or handles are left alone, and a handler that the program sets later replaces ours.

    Args:
        action: takes the number of the signal.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            action(number)
        finally:
            os.kill(os.getpid(), number)

    for name in FATAL:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handler)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _restore(handler))


def _restore(handler: object) -> None:
    """In a forked child: what was never ours to handle ends it at once again, wherever it is."""
    for name in FATAL:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
