"""Whether the guard itself is at work in this thread: what its own work causes is no event."""

from __future__ import annotations

import threading


class Busy(threading.local):
    """A flag of each thread.

    Attributes:
        value: True while the guard handles an event in this thread.
    """

    value = False


BUSY = Busy()
"""The flag of this process."""
