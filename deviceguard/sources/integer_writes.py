"""Calls that write floating values into an integer tensor and drop the fraction without a word."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deviceguard.events import Event, IntegersWritten

Row = Callable[[tuple[Any, ...], dict[str, Any]], "list[Event]"]


def before() -> dict[Any, Row]:
    """The rows by function object. Which calls truncate silently, and which refuse, was tried on PyTorch 2.13."""
    rows: dict[Any, tuple[str, int, tuple[str, ...]]] = {
        Tensor.__setitem__: ("t[...] = value", 2, ("value",)),
        Tensor.copy_: (".copy_()", 1, ("src", "other")),
        Tensor.fill_: (".fill_()", 1, ("value",)),
        Tensor.masked_fill_: (".masked_fill_()", 2, ("value",)),
        Tensor.masked_fill: (".masked_fill()", 2, ("value",)),
        Tensor.index_fill_: (".index_fill_()", 3, ("value",)),
        Tensor.scatter_: (".scatter_()", 3, ("value", "src")),
        torch.full_like: ("torch.full_like()", 1, ("fill_value",)),
    }
    return {function: functools.partial(_written, *row) for function, row in rows.items()}


def _written(
    call: str, position: int, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Event]:
    target = args[0] if args else None
    if not isinstance(target, Tensor) or target.dtype.is_floating_point or kwargs.get("dtype") is not None:
        return []
    value = args[position] if len(args) > position else next((kwargs[name] for name in names if name in kwargs), None)
    floating = value.dtype.is_floating_point if isinstance(value, Tensor) else isinstance(value, float)
    if not floating or target.dtype.is_complex or target.dtype is torch.bool:
        return []
    return [IntegersWritten(call, target, value)]  # type: ignore[arg-type]
