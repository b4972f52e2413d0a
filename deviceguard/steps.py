"""Finds the steps of a run: nobody has to declare them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from deviceguard.events import (
    Event,
    ModuleCalled,
    ModuleConverted,
    ModuleStateLoaded,
    OptimizerCreated,
    OptimizerStateLoaded,
    OptimizerStepped,
    OptimizerStepping,
    ParamGroupAdded,
    StepEnded,
)

if TYPE_CHECKING:
    from torch import nn

_CHANGES = frozenset(
    {
        ModuleConverted,
        ModuleStateLoaded,
        OptimizerCreated,
        OptimizerStateLoaded,
        ParamGroupAdded,
    }
)
"""After one of these a few more steps are examined in full."""


class Steps:
    """Counts steps and says which of them are examined in full.

    A training step runs from one ``step()`` of an optimizer to its next: optimizers that take turns (a GAN's two) share
    a step, micro-batches of gradient accumulation too. Before any optimizer has stepped, a second call of the same
    root module ends an inference step; once one has stepped, inference steps are no longer counted.

    The first ``full`` steps are examined in full, a few more after each change of models or optimizers, and two in
    ``period`` later on (the work that leads to a ``step()`` begins in the step before it), so that the work per step
    does not grow with the number of parameters.

    Args:
        full: number of steps examined in full at the start.
        period: distance of the steps examined later.
    """

    EVENTS = (ModuleCalled, OptimizerStepped, OptimizerStepping, *_CHANGES)

    def __init__(self, full: int = 10, period: int = 100) -> None:
        self.index = 0
        self.training = False
        self.examined = True
        self._full_until = full
        self._full = full
        self._period = max(1, period)
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last_root: weakref.ref[nn.Module] | None = None
        self._kept_awake = 0

    def handle(self, event: Event) -> StepEnded | None:
        """Take note of an event; the step it ended, if it ended one."""
        kind = type(event)
        if kind is OptimizerStepping:
            return self._stepping(event.optimizer)  # type: ignore[attr-defined]
        if kind is OptimizerStepped:
            return self._stepped_once(event.optimizer)  # type: ignore[attr-defined]
        if kind is ModuleCalled:
            if event.is_root and not self.training:  # type: ignore[attr-defined]
                return self._called(event.module)  # type: ignore[attr-defined]
            return None
        if kind in _CHANGES:
            self._full_until = max(self._full_until, self.index + min(3, self._full))
            self.examined = True
        return None

    def advance(self, training: bool = True) -> StepEnded:
        """End the step now, for loops that have no optimizer (``guard.step()``)."""
        self.training = self.training or training
        return self._end()

    def keep_awake(self, change: int) -> None:
        """One more region, or with -1 one less, in which no step may be slept through."""
        self._kept_awake += change

    def _stepping(self, optimizer: Any) -> StepEnded | None:
        if not self.training:  # from here on, so that what a closure calls is no inference step
            self.training = True
            self.index = 0
            self._last_root = None
        if optimizer not in self._stepped:
            return None
        ended = self._end()
        self._stepped.clear()
        return ended

    def _stepped_once(self, optimizer: Any) -> StepEnded | None:
        self._stepped.add(optimizer)
        return None

    def _called(self, module: nn.Module) -> StepEnded | None:
        last = self._last_root() if self._last_root is not None else None
        if last is None:
            self._last_root = weakref.ref(module)
            return None
        return self._end() if last is module else None

    def _end(self) -> StepEnded:
        ended = StepEnded(self.index, self.training)
        self.index += 1
        self.examined = self.index < self._full_until or self.index % self._period <= 1  # in pairs: forward, then step
        return ended
