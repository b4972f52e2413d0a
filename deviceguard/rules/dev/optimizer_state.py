"""What the rules on optimizer state have in common: which tensors an optimizer keeps for a parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer


def is_stock(optimizer: Optimizer) -> bool:
    """True for an optimizer that steps as PyTorch's own do (one of them, or a subclass that keeps their ``step``)."""
    for cls in type(optimizer).__mro__:
        if "step" in vars(cls):
            return cls.__module__.startswith("torch.optim")
    return False


def tensors_of_state(state: Mapping[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors kept for one parameter with their keys, those in lists (LBFGS) as ``old_dirs[0]``."""
    import torch

    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            yield str(key), value
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield f"{key}[{index}]", item


def entry_of(tensor: torch.Tensor, optimizer: object) -> tuple[torch.Tensor, str] | None:
    """The parameter and the key under which an optimizer keeps a tensor; None where it does not keep it."""
    from torch.optim import Optimizer

    if not isinstance(optimizer, Optimizer):
        return None
    for parameter, state in list(optimizer.state.items()):
        for key, kept in tensors_of_state(state) if isinstance(state, Mapping) else ():
            if kept is tensor:
                return parameter, key
    return None
