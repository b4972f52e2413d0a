"""``torch.accelerator``: the device-neutral spelling of the same questions."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from deviceguard.simulate import streams
from deviceguard.simulate.cuda_memory import memory_stats
from deviceguard.simulate.devices import index_of
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.state import running


class DeviceIndex:
    """``with torch.accelerator.device_index(i)``."""

    def __init__(self, device: int | None, /) -> None:
        self.idx = device
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx is not None:
            self.prev_idx = running().current.index
            running().current.index = self.idx

    def __exit__(self, *_: object) -> None:
        if self.idx is not None:
            running().current.index = self.prev_idx


def _set_index(device: Any) -> None:
    running().current.index = index_of(device)


def install(patches: Patches, memory: DeviceMemory) -> None:
    """Replace the functions of ``torch.accelerator``."""

    def stats(device: Any = None) -> OrderedDict[str, int]:
        return memory_stats(memory, index_of(device))

    def index() -> int:
        return running().current.index

    def reserved(device: Any = None) -> int:
        return memory.usage(index_of(device)).reserved

    patches.set(torch.Tensor, "record_stream", streams.record_stream)
    answers = {
        "is_available": lambda: running().count() > 0,
        "device_count": lambda: running().count(),
        "current_accelerator": lambda check_available=False: torch.device(running().type),
        "current_device_index": index,
        "current_device_idx": index,
        "set_device_index": _set_index,
        "set_device_idx": _set_index,
        "device_index": DeviceIndex,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": lambda device=None: None,
        "empty_cache": memory.trim,
        "memory_allocated": lambda device=None: memory.usage(index_of(device)).allocated,
        "max_memory_allocated": lambda device=None: memory.usage(index_of(device)).peak,
        "memory_reserved": reserved,
        "max_memory_reserved": lambda device=None: memory.usage(index_of(device)).reserved_peak,
        "memory_stats": stats,
        "reset_peak_memory_stats": lambda device=None: memory.reset_peak(index_of(device)),
        "reset_accumulated_memory_stats": lambda device=None: None,
        "get_memory_info": lambda device=None: (
            memory.total - memory.usage(index_of(device)).reserved,
            memory.total,
        ),
    }
    for name, value in answers.items():
        patches.set_existing(torch.accelerator, name, value)
    patches.set_existing(torch._C, "_get_accelerator", lambda check=None: torch.device(running().type))
    for name, stand_in in streams.neutral().items():
        patches.set_existing(torch, name, stand_in)
