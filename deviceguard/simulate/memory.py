"""What is allocated on each simulated device, counted by the life of the storages themselves."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

#: The real allocator hands out blocks of this size and multiples of it.
BLOCK = 512
#: The real allocator takes memory from the driver in segments of at least this size.
SEGMENT = 2 << 20
#: What a device has when no limit was asked for.
DEFAULT_TOTAL = 80 << 30


@dataclass(slots=True)
class Usage:
    """The counters of one device."""

    allocated: int = 0
    peak: int = 0
    reserved: int = 0
    reserved_peak: int = 0
    allocations: int = 0
    allocated_ever: int = 0
    freed_ever: int = 0
    out_of_memory: int = 0


class DeviceMemory:
    """The memory of all devices of one simulation."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._usage: dict[int, Usage] = {}
        self._lock = threading.RLock()

    def usage(self, index: int) -> Usage:
        """The counters of a device, made when first asked for."""
        found = self._usage.get(index)
        if found is None:
            found = self._usage[index] = Usage()
        return found

    @property
    def total(self) -> int:
        """The size of a device."""
        return DEFAULT_TOTAL if self.limit is None else self.limit

    def take(self, device: torch.device, nbytes: int) -> int:
        """Account for a new storage; raise the real out-of-memory error when it does not fit."""
        size = -(-nbytes // BLOCK) * BLOCK
        with self._lock:
            usage = self.usage(device.index)
            if self.limit is not None and usage.allocated + size > self.limit:
                usage.out_of_memory += 1
                raise torch.OutOfMemoryError(self._out_of_memory(device, nbytes, usage))
            usage.allocated += size
            usage.allocations += 1
            usage.allocated_ever += size
            usage.peak = max(usage.peak, usage.allocated)
            usage.reserved = max(usage.reserved, -(-usage.allocated // SEGMENT) * SEGMENT)
            usage.reserved_peak = max(usage.reserved_peak, usage.reserved)
        return size

    def give_back(self, index: int, size: int) -> None:
        """A storage died."""
        with self._lock:
            usage = self.usage(index)
            usage.allocated -= size
            usage.allocations -= 1
            usage.freed_ever += size

    def trim(self) -> None:
        """``empty_cache``: return the segments that nothing uses."""
        for usage in self._usage.values():
            usage.reserved = -(-usage.allocated // SEGMENT) * SEGMENT

    def reset_peak(self, index: int) -> None:
        """Forget the high-water marks of a device."""
        usage = self.usage(index)
        usage.peak, usage.reserved_peak = usage.allocated, usage.reserved

    def _out_of_memory(self, device: torch.device, nbytes: int, usage: Usage) -> str:
        free = max(self.total - usage.allocated, 0)
        return (
            f"CUDA out of memory. Tried to allocate {readable(nbytes)}. GPU {device.index} has a total capacity of "
            f"{readable(self.total)} of which {readable(free)} is free. Of the allocated memory "
            f"{readable(usage.allocated)} is allocated by PyTorch, and "
            f"{readable(max(usage.reserved - usage.allocated, 0))} is reserved by PyTorch but unallocated. If reserved "
            "but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation.  See documentation for Memory Management  "
            "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
        )


def readable(nbytes: int) -> str:
    """A size in the allocator's own format."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    for unit, shift in (("KiB", 10), ("MiB", 20)):
        if nbytes <= 1 << (shift + 10):
            return f"{nbytes / (1 << shift):.2f} {unit}"
    return f"{nbytes / (1 << 30):.2f} GiB"
