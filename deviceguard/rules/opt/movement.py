"""How far a step of an optimizer moves its parameters, measured on a few elements that have a gradient."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import Sample, gradient_of, sample_of, spread, versions_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

ELEMENTS = 16
"""Elements read of each parameter."""

PARAMETERS = 48
"""Parameters read of each optimizer, spread evenly."""


@dataclasses.dataclass(slots=True)
class Before:
    """The state before a step.

    Attributes:
        rows: for each parameter read: its elements and those of its gradient.
        versions: version counters of the same parameters.
    """

    rows: list[tuple[Sample, Sample]]
    versions: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Movement:
    """What a step did.

    Attributes:
        moved: True when an element with a gradient changed.
        written: True when a version counter grew, so that something was written.
        ratio: size of the change over size of the weights, of the elements with a gradient.
    """

    moved: bool
    written: bool
    ratio: float


def look(optimizer: Optimizer) -> Before | None:
    """The elements before a step; None where there is nothing to judge: no gradient, a rate of zero, not readable."""
    if not any(float(group.get("lr", 1.0)) for group in optimizer.param_groups):
        return None
    some = spread([p for p in parameters_of(optimizer) if gradient_of(p) is not None], PARAMETERS)
    rows: list[tuple[Sample, Sample]] = []
    for parameter in some:
        gradient = gradient_of(parameter)
        values, slopes = sample_of(parameter, ELEMENTS), sample_of(gradient, ELEMENTS) if gradient is not None else None
        if values is None or slopes is None or len(values) != len(slopes):
            return None
        rows.append((values, slopes))
    if not any(_counts(slope) for _, slopes in rows for slope in slopes):
        return None
    return Before(rows, versions_of(some))


def compare(optimizer: Optimizer, before: Before) -> Movement | None:
    """What happened since; None when it cannot be told."""
    some = spread([p for p in parameters_of(optimizer) if gradient_of(p) is not None], PARAMETERS)
    if len(some) != len(before.rows):
        return None
    moved, change, size = False, 0.0, 0.0
    for parameter, (values, slopes) in zip(some, before.rows, strict=True):
        now = sample_of(parameter, ELEMENTS)
        if now is None or len(now) != len(values):
            return None
        for old, new, slope in zip(values, now, slopes, strict=True):
            if _counts(slope):
                moved = moved or old != new
                change, size = change + (new - old) ** 2, size + old**2
    ratio = math.sqrt(change / size) if size > 0 else math.inf
    return Movement(moved, versions_of(some) != before.versions, ratio)


def _counts(slope: float) -> bool:
    return slope != 0.0 and math.isfinite(slope)
