"""The tensors inside optimizers and nested data. Rules import this, so it imports torch only when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The tensors of all param groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def tensors_in(obj: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """The tensors of nested dicts, lists, tuples and modules."""
    import torch

    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        yield from obj.parameters()
    elif isinstance(obj, dict) and depth:
        for value in obj.values():
            yield from tensors_in(value, depth - 1)
    elif isinstance(obj, list | tuple) and depth:
        for value in obj:
            yield from tensors_in(value, depth - 1)
