"""Moved copies of constants, so that a mask or table goes to the device once and not at every step."""

from __future__ import annotations

import weakref
from typing import Any

import torch

_EXACT = 4096
"""Tensors of up to so many elements are compared with what was copied, element by element."""
_PICKED = 64
"""Elements compared of a larger one."""


class _Entry:
    def __init__(self, host: torch.Tensor, device: torch.device, copy: torch.Tensor) -> None:
        self.host = weakref.ref(host)
        self.version = host._version
        self.device = device
        self.seen = _look(host)
        self.copy = copy


class Constants:
    """Keeps for each place of a call the last copy that was made there.

    A copy serves again for the very same tensor, unchanged since. It is dropped when that tensor dies, and when another
    one takes its place.
    """

    def __init__(self) -> None:
        self._entries: dict[Any, _Entry] = {}
        self.place: Any = None

    def moved(self, index: int, tensor: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, int]:
        """A tensor on a device, and the bytes copied for it; 0 where a kept copy served."""
        key = (self.place, index)
        entry = self._entries.get(key)
        if entry is not None and entry.host() is tensor and entry.device == device and _is_unchanged(entry, tensor):
            return entry.copy, 0
        copy = tensor.to(device)
        self._entries.pop(key, None)
        if _may_keep(tensor):
            self._entries[key] = _Entry(tensor, device, copy)
            weakref.finalize(tensor, self._drop, key, weakref.ref(tensor)).atexit = False
        return copy, tensor.nbytes

    def forget(self) -> None:
        """Drop all copies."""
        self._entries.clear()

    def _drop(self, key: Any, host: weakref.ref[torch.Tensor]) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.host() in (None, host()):
            self._entries.pop(key, None)


def owns_its_memory(tensor: torch.Tensor) -> bool:
    """False for a view, and for memory that NumPy or another process may write to."""
    return tensor._base is None and not tensor.is_shared() and tensor.untyped_storage().resizable()


def _may_keep(tensor: torch.Tensor) -> bool:
    return not tensor.requires_grad and not torch.is_inference(tensor) and owns_its_memory(tensor)


def _is_unchanged(entry: _Entry, tensor: torch.Tensor) -> bool:
    return tensor._version == entry.version and torch.equal(_look(tensor), entry.seen)


def _look(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    if flat.numel() > _EXACT:
        flat = flat[:: flat.numel() // _PICKED]
    return flat.clone()
