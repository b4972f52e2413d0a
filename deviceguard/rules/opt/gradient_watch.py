"""Follows the gradients of a few parameters from one step of an optimizer to the next backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deviceguard.ledger.values import Sample, gradient_of, sample_of, spread

if TYPE_CHECKING:
    import torch
    from torch.utils.weak import TensorWeakRef


@dataclasses.dataclass(slots=True)
class LeftOver:
    """A gradient that was there after a step.

    Attributes:
        parameter: whose gradient it is.
        identity: ``id`` of the gradient tensor.
        sample: some of its elements; not all zero.
        version: its version counter before the backward pass that is running, -1 while none has begun.
    """

    parameter: TensorWeakRef
    identity: int
    sample: Sample
    version: int = -1


def left_over(parameters: Sequence[torch.Tensor], most: int = 3) -> list[LeftOver]:
    """The gradients that some of the parameters have now, as far as they are readable and not zero."""
    from torch.utils.weak import TensorWeakRef

    found = []
    for parameter in spread([p for p in parameters if gradient_of(p) is not None], most):
        gradient = gradient_of(parameter)
        sample = sample_of(gradient, 16) if gradient is not None else None
        if gradient is not None and sample is not None and any(sample):
            found.append(LeftOver(TensorWeakRef(parameter), id(gradient), sample))
    return found


def still_there(left: LeftOver) -> torch.Tensor | None:
    """The gradient, when it is the same object with the same elements as when it was noted."""
    parameter = left.parameter()
    gradient = gradient_of(parameter) if parameter is not None else None
    if gradient is None or id(gradient) != left.identity or sample_of(gradient, 16) != left.sample:
        return None
    return gradient


def look_before_backward(noted: list[LeftOver]) -> list[LeftOver]:
    """Those that are still there as a backward pass begins, with their versions."""
    kept = []
    for left in noted:
        gradient = still_there(left)
        if gradient is not None:
            left.version = int(gradient._version)
            kept.append(left)
    return kept


def has_grown(left: LeftOver) -> bool:
    """True when a backward pass has added to the gradient that was still there when it began."""
    parameter = left.parameter()
    gradient = gradient_of(parameter) if parameter is not None else None
    if gradient is None or left.version < 0:
        return False
    return id(gradient) != left.identity or int(gradient._version) > left.version
