"""Indexing of accelerator tensors: which forms make the host wait, and for what.

Which form does what was measured on PyTorch's own CUDA build: ``x[3]``, ``x[1:4]``, ``x[None]``, ``x[device_index]``
and ``x[mask] = 0.0`` wait for nothing, while their neighbours below do.
"""

from __future__ import annotations

from typing import Any

import torch

from deviceguard.backends.blocking import blocking_of
from deviceguard.events import Event, HostRead, Uploaded
from deviceguard.sources.device_queue import QUEUE
from deviceguard.sources.transfers import nbytes, on_device, on_host

_MASKS = (torch.bool, torch.uint8)


def read_by_index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    """``x[index]``."""
    if len(args) < 2 or not on_device(args[0]):
        return []
    return _index_events(args[0], args[1])


def written_by_index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    """``x[index] = value``."""
    if len(args) < 3 or not on_device(args[0]):
        return []
    target, index, value = args[:3]
    parts = index if isinstance(index, tuple) else (index,)
    masked = any(isinstance(part, torch.Tensor) and part.dtype in _MASKS for part in parts)
    number = not isinstance(value, torch.Tensor)
    found: list[Event] = []
    if not (masked and number and _fills_by_mask(target, parts)):
        found += _index_events(target, index)
    if number and not masked and _writes_one_number(target, parts):
        found.append(_written(target, value, "x[i] = number", "x[i : i + 1] = number, or x[i].fill_(number)"))
    elif on_host(value) and (value.dim() > 0 or _is_gathered(parts)):
        found.append(_written(target, value, "x[index] = host tensor", "keep the value on the device"))
    return found


def put_by_index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    """``x.index_put_((index,), value)``."""
    if len(args) < 2 or not on_device(args[0]):
        return []
    return _index_events(args[0], tuple(args[1]))


def _fills_by_mask(target: torch.Tensor, parts: tuple[Any, ...]) -> bool:
    return len(parts) == 1 and not blocking_of(target.device.type).counts_masks_when_filling


def _index_events(target: torch.Tensor, index: Any) -> list[Event]:
    if isinstance(index, torch.Tensor):
        event = _of_tensor(target, index)
        return [event] if event is not None else []
    if isinstance(index, slice):
        return _of_slice(index)
    if isinstance(index, tuple):
        return [event for part in index for event in _index_events(target, part)]
    if _is_host_sequence(index):
        QUEUE.settle()
        return [Uploaded("x[index]", "index", index, target, 8 * len(index), explicit=False)]
    return []


def _of_tensor(target: torch.Tensor, index: torch.Tensor) -> Event | None:
    if on_device(index):
        if index.dtype in _MASKS:
            QUEUE.settle()
            return HostRead("x[mask]", "shape", target, explicit=False)
        if index.dim() == 0:
            QUEUE.settle()
            return HostRead("x[t]", "number", index, explicit=False, instead="x[t[None]], or index with a Python int")
        return None
    if not on_host(index) or (index.dim() == 0 and index.dtype not in _MASKS):
        return None
    QUEUE.settle()
    return Uploaded("x[index]", "index", index, target, nbytes(index), explicit=False)


def _of_slice(index: slice) -> list[Event]:
    bounds = [bound for bound in (index.start, index.stop, index.step) if on_device(bound)]
    if bounds:
        QUEUE.settle()
    return [HostRead("x[:t]", "number", bound, explicit=False, instead="Python ints as bounds") for bound in bounds]


def _is_host_sequence(index: Any) -> bool:
    """A list of ints or bools, or a NumPy array with dimensions."""
    if isinstance(index, list):
        return bool(index) and isinstance(index[0], int)
    return type(index).__module__ == "numpy" and type(index).__name__ == "ndarray" and index.ndim > 0


def _is_gathered(parts: tuple[Any, ...]) -> bool:
    return any(isinstance(part, torch.Tensor) or _is_host_sequence(part) for part in parts)


def _writes_one_number(target: torch.Tensor, parts: tuple[Any, ...]) -> bool:
    """True where PyTorch copies the number as a host tensor instead of filling."""
    if not blocking_of(target.device.type).uploads_written_numbers:
        return False
    if any((isinstance(part, torch.Tensor) and part.dim() > 0) or _is_host_sequence(part) for part in parts):
        return True
    whole = sum(1 for part in parts if isinstance(part, int) and not isinstance(part, bool))
    return whole == len(parts) == target.dim() and target.dim() > 0


def _written(target: torch.Tensor, value: Any, call: str, instead: str) -> Uploaded:
    QUEUE.settle()
    size = nbytes(value) if isinstance(value, torch.Tensor) else target.element_size()
    return Uploaded(call, "write", value, target, size, explicit=False, instead=instead)
