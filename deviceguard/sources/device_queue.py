"""What the host has queued on accelerators and not waited for yet: copies by the memory they touch, and other work.

One per process, as the devices themselves are. It holds weak references to storages only.
"""

from __future__ import annotations

import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_MOST_COPIES = 256


class DeviceQueue:
    """Notes queued copies and launches until something makes the host wait.

    A wait of any kind settles everything: a finer view (one stream, one event) could only add findings, and a wrong one
    is worse than a missed one.

    Attributes:
        copies: by the storage's number: a weak reference to it, the direction of the copy.
        launched: True once work was launched after the clock was last read and the host last waited.
        timed: True from a look at the clock until the host waits, so that launches are worth a look.
    """

    def __init__(self) -> None:
        self.copies: dict[int, tuple[StorageWeakRef, str]] = {}
        self.launched = False
        self.timed = False
        self._lock = threading.Lock()

    def queue(self, host: torch.Tensor, direction: str) -> None:
        """A copy from or to a host tensor was queued."""
        storage = host.untyped_storage()
        with self._lock:
            if len(self.copies) >= _MOST_COPIES:
                self.copies = {key: entry for key, entry in self.copies.items() if not entry[0].expired()}
            if len(self.copies) < _MOST_COPIES:
                self.copies[storage._cdata] = (StorageWeakRef(storage), direction)

    def direction_of(self, tensor: torch.Tensor) -> str | None:
        """The direction of the queued copy that touches a tensor's memory, or None."""
        try:
            entry = self.copies.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return None
        return entry[1] if entry is not None and not entry[0].expired() else None

    def settle(self) -> None:
        """The host has waited; a measurement that contains a wait is not worth a word."""
        self.launched = self.timed = False
        if self.copies:
            with self._lock:
                self.copies = {}

    def clock_read(self) -> bool:
        """The clock is read now; True when work launched since it was last read is not settled."""
        launched, self.launched, self.timed = self.launched, False, True
        return launched

    def forget(self) -> None:
        """Start afresh, when nobody watches any more."""
        self.settle()


QUEUE = DeviceQueue()
"""The queue of this process."""
