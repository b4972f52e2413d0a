"""``torch.cuda.memory_*``: read from the books of the simulation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from deviceguard.simulate.devices import index_of
from deviceguard.simulate.memory import DeviceMemory


def answers(memory: DeviceMemory) -> dict[str, Callable[..., Any]]:
    """The functions, by name."""

    def stats(device: Any = None) -> OrderedDict[str, int]:
        return memory_stats(memory, index_of(device))

    def reset_peak(device: Any = None) -> None:
        memory.reset_peak(index_of(device))

    def info(device: Any = None) -> tuple[int, int]:
        return memory.total - memory.usage(index_of(device)).reserved, memory.total

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        usage = memory.usage(index_of(device))
        return f"simulated device: {usage.allocated} bytes allocated, {usage.peak} at the peak"

    def reserved(device: Any = None) -> int:
        return memory.usage(index_of(device)).reserved

    def reserved_peak(device: Any = None) -> int:
        return memory.usage(index_of(device)).reserved_peak

    return {
        "memory_allocated": lambda device=None: memory.usage(index_of(device)).allocated,
        "max_memory_allocated": lambda device=None: memory.usage(index_of(device)).peak,
        "memory_reserved": reserved,
        "max_memory_reserved": reserved_peak,
        "memory_cached": reserved,
        "max_memory_cached": reserved_peak,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "memory_stats": stats,
        "memory_summary": summary,
        "mem_get_info": info,
        "empty_cache": memory.trim,
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "get_allocator_backend": lambda: "native",
        "device_memory_used": lambda device=None: memory.usage(index_of(device)).reserved,
        "_record_memory_history": lambda *args, **kwargs: None,
    }


def memory_stats(memory: DeviceMemory, index: int) -> OrderedDict[str, int]:
    """The statistics under the allocator's own keys."""
    usage = memory.usage(index)
    stats: OrderedDict[str, int] = OrderedDict()
    for group in ("active_bytes", "allocated_bytes", "requested_bytes"):
        for pool in ("all", "large_pool"):
            stats[f"{group}.{pool}.current"] = usage.allocated
            stats[f"{group}.{pool}.peak"] = usage.peak
            stats[f"{group}.{pool}.allocated"] = usage.allocated_ever
            stats[f"{group}.{pool}.freed"] = usage.freed_ever
    stats["allocation.all.current"] = usage.allocations
    stats["reserved_bytes.all.current"] = usage.reserved
    stats["reserved_bytes.all.peak"] = usage.reserved_peak
    stats["inactive_split_bytes.all.current"] = 0
    stats["num_alloc_retries"] = 0
    stats["num_ooms"] = usage.out_of_memory
    return stats
