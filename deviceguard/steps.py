"""Finds the steps of a run: nobody has to declare them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from deviceguard.events import (
    BatchFetched,
    Event,
    GradientsCleared,
    ModuleCalled,
    ModuleConverted,
    ModuleMet,
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

_BOUNDARIES = frozenset({BatchFetched, GradientsCleared, ModuleCalled})
"""With one of these, coming after the last ``step()`` of a training step, the loop begins anew."""
_WINDOW = 4
"""So many steps in a row are told between two sleeps."""
_LONGEST_SLEEP = 10
"""In periods."""
_MOST_SLEEPS = 256
"""So many sleeps are known one by one; in a longer run every second one of the earlier is forgotten."""
_VISIT = 20
"""Calls of root modules that are told when a model comes by that was not called so before."""


class Steps:
    """Counts steps, and says which of them are told to the rules and which of these are examined in full.

    A training step runs from one ``step()`` of an optimizer to its next: optimizers that take turns (a GAN's two) share
    a step, micro-batches of gradient accumulation too. Before any optimizer has stepped, a second call of the same
    root module ends an inference step; once one has stepped, inference steps are no longer counted.

    The first ``captured`` steps are told. Then the guard sleeps and wakes for a few steps in each ``period``, seldomer
    the longer nothing changes. It falls asleep and wakes where the loop begins anew, so that what the rules are told
    looks like a run in which the steps between did not happen; ``index``, their clock, stands still meanwhile. It wakes
    at a change of models or optimizers and at a root module that was never called in this mode (``train``, ``eval``).

    Of the steps that are told, the first ``full`` are examined in full, a few more after each change, and two of those
    between sleeps (the work that leads to a ``step()`` begins in the step before it), so that the work per step
    does not grow with the number of parameters.

    Args:
        full: number of steps examined in full at the start.
        period: steps from one sample to the next; with 1 every step is told.
        captured: number of steps told at the start.
        always: True for a guard that never sleeps, because it has to act on each step.

    Attributes:
        index: number of the running step, not counting those that were slept through.
        number: number of the running step.
        training: True once an optimizer has stepped.
        examined: True while the running step is examined in full.
        awake: True while recurring events are told to the rules.
        listening: True while the sources have to report recurring events.
    """

    EVENTS = frozenset({ModuleCalled, ModuleMet, OptimizerStepped, OptimizerStepping}) | _CHANGES

    def __init__(self, full: int = 10, period: int = 100, captured: int = 100, always: bool = False) -> None:
        self.index = 0
        self.number = 0
        self.training = False
        self.examined = True
        self.awake = True
        self.listening = True
        self._full_until = full
        self._full = full
        self._period = max(1, period)
        self._always = always or self._period == 1
        self._kept_awake = 0
        self._told_until = max(full, captured)
        self._gap = self._period
        self._window = self._told_until + self._period
        self._in_window = 0
        self._visit = 0
        self._visits = 0
        self._next_visit = 0
        self._between = True
        self._listened = True
        self._slept: list[tuple[int, int]] = []
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: weakref.ref[Any] | None = None
        self._last: weakref.ref[Any] | None = None
        self._last_root: weakref.ref[nn.Module] | None = None

    def handle(self, event: Event) -> StepEnded | None:
        """Take note of an event; the step it ended, if it ended one."""
        kind = type(event)
        ended = None
        if kind is OptimizerStepping:
            return self._stepping(event.optimizer)  # type: ignore[attr-defined]
        if kind is OptimizerStepped:
            return self._stepped_once(event.optimizer)  # type: ignore[attr-defined]
        if kind is ModuleCalled:
            if not event.is_root:  # type: ignore[attr-defined]
                return None
            if not self.training:
                ended = self._called(event.module)  # type: ignore[attr-defined]
            if self._visit:
                self._visited(event.module)  # type: ignore[attr-defined]
        elif kind is ModuleMet:
            self._met()
        elif kind in _CHANGES:
            self._changed()
        if kind in _BOUNDARIES and self._between:
            self._between = False
            self._settle()
        return ended

    @property
    def followed(self) -> frozenset[type[Event]]:
        """The recurring events that are needed even now, asleep or not."""
        if self.training:
            return frozenset({OptimizerStepped, OptimizerStepping})
        return frozenset({ModuleCalled, OptimizerStepped, OptimizerStepping})

    def advance(self, training: bool = True) -> StepEnded:
        """End the step now, for loops that have no optimizer (``guard.step()``)."""
        self.training = self.training or training
        ended = self._end()
        self._settle()
        return ended

    def keep_awake(self, change: int) -> None:
        """One more region, or with -1 one less, in which no step may be slept through."""
        self._kept_awake += change
        if self._kept_awake and not self.awake:
            self._wake()

    def number_of(self, index: int) -> int:
        """The number of a step in the run, given its number among those that were told."""
        if index >= self.index:
            return self.number
        slept = 0
        for first, missed in self._slept:
            if index < first:
                break
            slept = missed
        return index + slept

    def _stepping(self, optimizer: Any) -> StepEnded | None:
        if not self.training:  # from here on, so that what a closure calls is no inference step
            self.training = True
            self.index = self.number = self._next_visit = 0
            self.listening = True
            self._slept.clear()
            self._last_root = None
            self._last = None
        ended = None
        if optimizer in self._stepped:
            ended = self._end()
            self._stepped.clear()
        if self._between and self._listened:  # nothing has said so before: the forward is in a closure, or no module's
            self._settle()
        self._between = False
        return ended

    def _stepped_once(self, optimizer: Any) -> StepEnded | None:
        self._stepped.add(optimizer)
        self._latest = weakref.ref(optimizer)
        self._listened = self.listening
        last = self._last() if self._last is not None else None
        self._between = last is None or last is optimizer
        return None

    def _called(self, module: nn.Module) -> StepEnded | None:
        last = self._last_root() if self._last_root is not None else None
        if last is None:
            self._last_root = weakref.ref(module)
            return None
        if last is not module:
            return None
        self._between = True
        return self._end()

    def _end(self) -> StepEnded:
        ended = StepEnded(self.index, self.training)
        self.number += 1
        self._last = self._latest
        if self.awake:
            self.index += 1
            self.examined = self._is_examined()
        self.listening = self.awake or self._is_due
        return ended

    def _is_examined(self) -> bool:
        if self.index < self._full_until:
            return True
        if self.number < self._told_until or self._always:
            return self.index % self._period <= 1  # in pairs: forward, then step
        self._in_window += 1
        return self._in_window < 2

    @property
    def _is_due(self) -> bool:
        if self._always or self._kept_awake:
            return True
        return self.number < self._told_until or self._window <= self.number < self._window + _WINDOW

    # Sleeping and waking

    def _changed(self) -> None:
        self._full_until = max(self._full_until, self.index + min(3, self._full))
        self._told_until = max(self._told_until, self.number + self._full)
        self._gap = self._period
        self._window = self._told_until + self._gap
        self.examined = self.listening = True

    def _met(self) -> None:
        if not self.awake and self.number >= self._next_visit:
            self._visits += 1  # a program that makes a model a step must not keep the guard awake
            self._next_visit = self.number + self._visits * _VISIT
            self._visit = _VISIT + 1
            self._wake()

    def _visited(self, module: nn.Module) -> None:
        self._visit -= 1
        if not self._visit and not module.training:  # a long evaluation, in which no loop begins anew
            self._settle()

    def _settle(self) -> None:
        """The loop begins anew: here the guard may fall asleep or wake."""
        if self._is_due:
            self._visit = 0
            if not self.awake:
                self._wake()
        elif self.awake and not self._visit:
            self.awake = self.listening = self.examined = False
            if self.number >= self._window:
                self._gap = min(2 * self._gap, _LONGEST_SLEEP * self._period)
                self._window = self.number + self._gap

    def _wake(self) -> None:
        self.awake = self.listening = self.examined = True
        self._in_window = 0
        self._slept.append((self.index, self.number - self.index))
        if len(self._slept) > _MOST_SLEEPS:
            del self._slept[1:-1:2]
