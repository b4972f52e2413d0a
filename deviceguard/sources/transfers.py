"""Copies between host and device: which of them a call made, told by comparing what went in with what came out."""

from __future__ import annotations

from typing import Any

import torch

from deviceguard.backends.devices import is_accelerator, is_host
from deviceguard.events import CopyQueued, Event, HostRead, MovedBetweenDevices, Uploaded
from deviceguard.sources.device_queue import QUEUE

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def on_device(value: Any) -> bool:
    """True for a real tensor on an accelerator (not the fake ones a compiler traces with)."""
    return isinstance(value, torch.Tensor) and is_accelerator(value.device) and type(value).__name__ != "FakeTensor"


def on_host(value: Any) -> bool:
    """True for a tensor on the host."""
    return isinstance(value, torch.Tensor) and is_host(value.device)


def nbytes(tensor: torch.Tensor) -> int:
    """The size of a tensor's elements in bytes."""
    return tensor.numel() * tensor.element_size()


def wants_no_wait(args: _Args, kwargs: _Kwargs) -> bool:
    """The ``non_blocking`` argument of ``.to``, ``.cuda`` and ``.copy_``: the first bool among the arguments."""
    if "non_blocking" in kwargs:
        return bool(kwargs["non_blocking"])
    return next((value for value in args[1:] if isinstance(value, bool)), False)


def moved(call: str, args: _Args, kwargs: _Kwargs, result: Any) -> list[Event]:
    """What ``.to`` and its relatives did."""
    source = args[0]
    if not isinstance(result, torch.Tensor) or result is source or not isinstance(source, torch.Tensor):
        return []
    return crossed(call, source, result, wants_no_wait(args, kwargs))


def copied_into(call: str, args: _Args, kwargs: _Kwargs, result: Any) -> list[Event]:
    """What ``target.copy_(source)`` did."""
    source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    if not isinstance(source, torch.Tensor):
        return []
    return crossed(call, source, args[0], wants_no_wait(args, kwargs))


def crossed(call: str, source: torch.Tensor, target: torch.Tensor, no_wait: bool) -> list[Event]:
    """The events of a copy between two tensors, by where they are."""
    here, there = source.device, target.device
    if here == there or "FakeTensor" in (type(source).__name__, type(target).__name__):
        return []
    if is_host(here) and is_accelerator(there):
        return _uploaded(call, source, target, no_wait)
    if is_accelerator(here) and is_host(there):
        return _downloaded(call, source, target, no_wait)
    if is_accelerator(here) and is_accelerator(there):
        return [MovedBetweenDevices(call, source, target)]
    return []


def _uploaded(call: str, source: torch.Tensor, target: torch.Tensor, no_wait: bool) -> list[Event]:
    pinned = source.is_pinned()
    found: list[Event] = [Uploaded(call, "move", source, target, nbytes(source), pinned, no_wait)]
    if no_wait and pinned and _is_dense(source):
        QUEUE.queue(source, "upload")
        found.append(CopyQueued("upload", source, call))
    elif source.numel():
        QUEUE.settle()
    return found


def _is_dense(tensor: torch.Tensor) -> bool:
    """True for a tensor that is copied as it lies; one with gaps goes through pageable memory, pinned or not."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == 0 or last + 1 == tensor.numel()


def _downloaded(call: str, source: torch.Tensor, target: torch.Tensor, no_wait: bool) -> list[Event]:
    if no_wait and target.is_pinned():
        QUEUE.queue(target, "download")
        return [CopyQueued("download", target, call)]
    QUEUE.settle()
    return [HostRead(call, "copy", source, explicit=True)]


def built(call: str, instead: str, args: _Args, kwargs: _Kwargs, result: Any) -> list[Event]:
    """What a factory that takes Python, NumPy or tensor data did (``torch.tensor``, ``torch.as_tensor``)."""
    data = data_of(args, kwargs)
    if not isinstance(result, torch.Tensor) or result is data:
        return []
    if isinstance(data, torch.Tensor):
        return crossed(call, data, result, no_wait=False)
    if not on_device(result) or holds_device_tensor(data):
        return []
    QUEUE.settle()
    return [Uploaded(call, "data", data, result, nbytes(result), instead=instead)]


def data_of(args: _Args, kwargs: _Kwargs) -> Any:
    """The data argument of a factory, also of one that is a method."""
    given = args[1:] if len(args) > 1 and isinstance(args[0], torch.Tensor) else args
    return given[0] if given else kwargs.get("data", kwargs.get("obj"))


def holds_device_tensor(data: Any) -> bool:
    """True when Python data contains a tensor on an accelerator (looked at one level deep)."""
    items = data if isinstance(data, list | tuple) else (data,)
    return any(on_device(item) for item in items[:64])
