"""Calls that clamp or measure a gradient: what a program writes by hand in place of the functions of ``nn.utils``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deviceguard.events import Event, GradientHandled

Row = Callable[[tuple[Any, ...], dict[str, Any]], "list[Event]"]


def before() -> dict[Any, Row]:
    """The rows by function object."""
    clamps: dict[Any, str] = {
        Tensor.clamp_: ".clamp_()",
        Tensor.clip_: ".clip_()",
        Tensor.clamp: ".clamp()",
        Tensor.clip: ".clip()",
    }
    clamps |= {torch.clamp: "torch.clamp()", torch.clip: "torch.clip()"}
    norms: dict[Any, str] = {
        Tensor.norm: ".norm()",
        torch.norm: "torch.norm()",
        torch.linalg.norm: "torch.linalg.norm()",
    }
    norms |= {torch.linalg.vector_norm: "torch.linalg.vector_norm()"}
    rows: dict[Any, Row] = {function: functools.partial(_clamped, call) for function, call in clamps.items()}
    return rows | {function: functools.partial(_measured, call) for function, call in norms.items()}


def _clamped(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    bounds = [*args[1:3], *(kwargs[name] for name in ("min", "max") if name in kwargs)]
    numbers = [abs(float(bound)) for bound in bounds if isinstance(bound, int | float)]
    return _handled(call, args, max(numbers, default=math.nan))


def _measured(call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    return _handled(call, args, math.inf)


def _handled(call: str, args: tuple[Any, ...], limit: float) -> list[Event]:
    tensor = args[0] if args else None
    if not isinstance(tensor, Tensor) or tensor.grad_fn is not None or tensor.requires_grad:
        return []
    return [GradientHandled(call, tensor, limit)]
