"""Which calls use host memory that a queued copy touches, and which launch work on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deviceguard.events import UnsettledAccess
from deviceguard.sources.device_queue import QUEUE
from deviceguard.sources.transfers import on_device, on_host

#: Calls that hand the memory on without looking into it.
_LOOKS_AT_NOTHING = frozenset(
    {
        *("__get__", "__set__", "__len__", "__hash__", "__iter__", "__getitem__", "__dlpack_device__"),
        *("size", "dim", "stride", "numel", "nelement", "element_size", "is_contiguous", "data_ptr", "storage_offset"),
        *("untyped_storage", "storage", "is_pinned", "pin_memory", "is_floating_point", "is_complex", "is_shared"),
        *("record_stream", "view", "reshape", "view_as", "expand", "expand_as", "permute", "transpose", "t", "squeeze"),
        *("unsqueeze", "flatten", "detach", "detach_", "narrow", "select", "split", "chunk", "unbind", "unfold"),
        *("as_strided", "requires_grad_", "get_device", "type_as", "ndimension", "backward", "register_hook"),
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_empty", "new_zeros"),
        *("new_ones", "new_full", "new_tensor", "is_same_size", "movedim", "swapaxes", "_set_grad_enabled"),
    }
)
_ALIASES = frozenset({"numpy", "__array__", "__dlpack__"})
_WRITES = frozenset({"__setitem__", "set_", "resize_", "share_memory_"})
_CROSSES = frozenset({"to", "cuda", "cpu", "copy_", "type"})


def accesses(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[UnsettledAccess]:
    """The uses a call makes of memory that a queued copy touches."""
    name = getattr(function, "__name__", "")
    if name in _LOOKS_AT_NOTHING:
        return
    written = _written(name, args, kwargs)
    for tensor in _tensors((*args, *kwargs.values())):
        direction = QUEUE.direction_of(tensor)
        if direction is None or not on_host(tensor):
            continue
        writes = any(tensor is target for target in written)
        access = "alias" if name in _ALIASES else "write" if writes else "read"
        if direction == "upload" and access != "write":
            continue  # reading what is being uploaded is harmless
        if _is_queued_again(name, tensor, args):
            continue
        yield UnsettledAccess(direction, access, tensor, name)
        return


def launches(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a call that queues work on an accelerator."""
    name = getattr(function, "__name__", "")
    if name in _LOOKS_AT_NOTHING or name in _CROSSES:
        return False
    return any(on_device(tensor) for tensor in _tensors((*args, *kwargs.values())))


def _is_queued_again(name: str, tensor: Tensor, args: tuple[Any, ...]) -> bool:
    """True for another queued copy of the same memory: copies of one stream run in order."""
    if name not in _CROSSES or name == "cpu":
        return False
    other = args[1] if len(args) > 1 else None
    if name == "copy_":
        return isinstance(other, Tensor) and other is not tensor and not on_host(other)
    return tensor is args[0]


def _written(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    targets = [args[0]] if in_place and args else []
    out = kwargs.get("out")
    return targets + (list(out) if isinstance(out, list | tuple) else [out])


def _tensors(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value[:64] if isinstance(item, torch.Tensor))
