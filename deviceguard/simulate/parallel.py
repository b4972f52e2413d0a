"""Scatter, gather and broadcast between devices, which ``DataParallel`` is made of."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from deviceguard.simulate.devices import HOST, device, index_of
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.state import running


def _place(index: Any) -> torch.device:
    return device(running().type, index_of(index))


def broadcast(tensor: Tensor, devices: Any = None, *, out: Sequence[Tensor] | None = None) -> Any:
    """A copy on every device; the tensor itself where it already is."""
    if out is not None:
        for target in out:
            target.copy_(tensor)
        return tuple(out)
    return tuple(tensor.to(_place(index)) for index in devices)


def broadcast_coalesced(tensors: Sequence[Tensor], devices: Any, buffer_size: int = 0) -> list[list[Tensor]]:
    """Several tensors at once."""
    return [[tensor.to(_place(index)) for tensor in tensors] for index in devices]


def reduce_add(inputs: Sequence[Tensor], destination: Any = None) -> Tensor:
    """The sum, on one device."""
    target = _place(destination)
    total = inputs[0].to(target, copy=True)
    for tensor in inputs[1:]:
        total = total + tensor.to(target)
    return total


def reduce_add_coalesced(
    inputs: Iterable[Sequence[Tensor]], destination: Any = None, buffer_size: int = 0
) -> tuple[Tensor, ...]:
    """Several sums at once."""
    return tuple(reduce_add(column, destination) for column in zip(*inputs, strict=True))


def scatter(
    tensor: Tensor,
    devices: Any = None,
    chunk_sizes: Any = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """One chunk for each device."""
    count = len(out if out is not None else devices)
    chunks = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(count, dim)
    if out is not None:
        for target, chunk in zip(out, chunks, strict=True):
            target.copy_(chunk)
        return tuple(out)
    return tuple(chunk.to(_place(index)) for chunk, index in zip(chunks, devices, strict=False))


def gather(tensors: Iterable[Tensor], dim: int = 0, destination: Any = None, *, out: Tensor | None = None) -> Tensor:
    """All chunks on one device; ``"cpu"`` or -1 is the host."""
    host = destination == -1 or (destination is not None and str(destination) == "cpu")
    target = out.device if out is not None else HOST if host else _place(destination)
    joined = torch.cat([tensor.to(target) for tensor in tensors], dim)
    return joined if out is None else out.copy_(joined)


def install(patches: Patches) -> None:
    """Replace the functions where they are defined and where they are re-exported."""
    modules = (importlib.import_module("torch.nn.parallel.comm"), importlib.import_module("torch.cuda.comm"))
    for function in (broadcast, broadcast_coalesced, reduce_add, reduce_add_coalesced, scatter, gather):
        for module in modules:
            patches.set_existing(module, function.__name__, function)
