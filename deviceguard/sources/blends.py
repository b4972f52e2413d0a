"""In-place blends into low-precision tensors: how averages of weights are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deviceguard.events import Blended, Event

Row = Callable[[tuple[Any, ...], dict[str, Any]], "list[Event]"]

_NARROW = (torch.bfloat16, torch.float16)
_SMALL = 0.1


def before() -> dict[Any, Row]:
    """The rows by function object."""
    return {Tensor.lerp_: _lerp, Tensor.add_: _add}


def _lerp(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    other = args[1] if len(args) > 1 else kwargs.get("end")
    return _blended(".lerp_()", args[0], other, weight)


def _add(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    if "alpha" not in kwargs:
        return []
    other = args[1] if len(args) > 1 else kwargs.get("other")
    return _blended(".add_()", args[0], other, kwargs["alpha"])


def _blended(call: str, target: Any, other: Any, weight: Any) -> list[Event]:
    if target.dtype not in _NARROW or target.requires_grad or not isinstance(other, Tensor):
        return []
    if not isinstance(weight, float) or not 0.0 < weight < _SMALL or other.shape != target.shape:
        return []
    return [Blended(call, target, other)]
