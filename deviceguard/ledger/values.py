"""Reads a few elements of tensors, to tell whether they changed. Rare by design: reading may wait for a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deviceguard.backends.devices import META, backend_of

if TYPE_CHECKING:
    import torch

ELEMENTS = 4
"""Elements read of each tensor, spread evenly over it."""

TENSORS = 12
"""Tensors read of each model or optimizer, spread evenly over it."""

Sample = tuple[float, ...]


def readable(tensor: torch.Tensor) -> bool:
    """True for a plain dense tensor whose elements can be read without running a graph or a collective."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(tensor, torch.nn.Buffer):
        return False
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.device.type == META:
        return False
    backend = backend_of(tensor.device)
    return backend is None or not backend.traced


def sample_of(tensor: torch.Tensor, elements: int = ELEMENTS) -> Sample | None:
    """A few elements of a tensor as numbers; None where it cannot be read."""
    import torch

    try:
        if not readable(tensor):
            return None
        values = picked(tensor, elements)
        return tuple(
            float(value) for value in (torch.view_as_real(values) if values.is_complex() else values).flatten().tolist()
        )
    except Exception:
        return None


def picked(tensor: torch.Tensor, elements: int = ELEMENTS) -> torch.Tensor:
    """The elements that :func:`sample_of` reads, as a tensor on the same device."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, math.ceil(flat.numel() / elements))]


def sample_of_all(tensors: Iterable[torch.Tensor], elements: int = ELEMENTS) -> tuple[Sample | None, ...]:
    """Samples of a few of the tensors, always of the same ones for the same list."""
    return tuple(sample_of(tensor, elements) for tensor in spread(list(tensors)))


def spread(tensors: Sequence[torch.Tensor], most: int = TENSORS) -> list[torch.Tensor]:
    """At most ``most`` of the tensors, the first and the last among them."""
    if len(tensors) <= most:
        return list(tensors)
    return [tensors[round(i * (len(tensors) - 1) / (most - 1))] for i in range(most)]


def versions_of(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Version counters: they grow with each in-place change that autograd sees. -1 where there is none."""
    found = []
    for tensor in tensors:
        try:
            found.append(int(tensor._version))
        except (RuntimeError, AttributeError):
            found.append(-1)  # inference tensors do not track versions
    return tuple(found)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a leaf; None without one, and for a tensor that is no leaf (reading it there warns)."""
    return parameter.grad if parameter.is_leaf else None


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors sharing memory have in common; the tensor's own identity where it has no storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)
