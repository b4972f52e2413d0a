"""Saving and loading: a storage is tagged with its simulated device, and a tag puts it there again."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from deviceguard.simulate.devices import simulated
from deviceguard.simulate.labels import ATTRIBUTE, label_storage
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.state import running

#: Before PyTorch's own tagger of the host, which has 10.
PRIORITY = 5


def _label(storage: Any) -> torch.device | None:
    allocation = getattr(getattr(storage, "_untyped_storage", storage), ATTRIBUTE, None)
    return None if allocation is None else allocation.device


def _tag(storage: Any) -> str | None:
    label = _label(storage)
    return None if label is None else str(label)


def _restorer(memory: DeviceMemory) -> Any:
    def restore(storage: Any, location: str) -> Any:
        if not location.startswith(running().type):
            return None
        parsed = torch.device(location)
        count = running().count()
        if parsed.index is not None and parsed.index >= count:
            raise RuntimeError(
                f"Attempting to deserialize object on CUDA device {parsed.index} but torch.cuda.device_count() is "
                f"{count}. Please use torch.load with map_location to map your storages to an existing device."
            )
        target = simulated(parsed)
        if target is not None:
            label_storage(getattr(storage, "_untyped_storage", storage), target, memory)
        return storage

    return restore


def _storage_device(self: Any) -> torch.device:
    """``UntypedStorage.device``."""
    allocation = self.__dict__.get(ATTRIBUTE)
    if allocation is not None and allocation.device is not None:
        return allocation.device
    return _real_device.__get__(self)


_real_device = inspect.getattr_static(torch._C.StorageBase, "device", None)


def install(patches: Patches, memory: DeviceMemory) -> None:
    """Register the tagger and make storages say where they are."""
    registry = torch.serialization._package_registry
    entry = (PRIORITY, _tag, _restorer(memory))
    registry.insert(0, entry)
    patches.on_undo(lambda: registry.remove(entry))

    def moved(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        target = simulated(running().type if device is None else device)
        copied = on_host(self)
        if target is not None:
            label_storage(copied, target, memory)
        return copied

    def clone(self: Any) -> Any:
        copied, label = on_host(self), _label(self)
        if label is not None:
            label_storage(copied, label, memory)
        return copied

    def on_host(storage: Any) -> Any:
        made: Any = torch.UntypedStorage
        return made(storage.nbytes()).copy_(storage, False)

    def is_simulated(self: Any) -> bool:
        return _label(self) is not None

    patches.set(torch.UntypedStorage, "device", property(_storage_device))
    patches.set(torch.UntypedStorage, "is_cuda", property(is_simulated))
    patches.set(torch.UntypedStorage, "cuda", moved)
    patches.set(torch.UntypedStorage, "clone", clone)
