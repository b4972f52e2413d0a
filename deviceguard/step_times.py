"""Where the time of a step goes: waiting for data, upload, blocked on the device, the optimizer, and the host's own."""

from __future__ import annotations

import dataclasses
import statistics
import threading
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from deviceguard.backends.devices import is_accelerator
from deviceguard.backends.estimates import upload_seconds, wait_seconds
from deviceguard.backends.simulated import running_simulation
from deviceguard.events import (
    BatchFetched,
    CacheEmptied,
    Event,
    HostRead,
    OptimizerStepped,
    OptimizerStepping,
    StepEnded,
    Synchronized,
    Uploaded,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

_MOST_STEPS = 512
"""The latest steps that are kept."""
_OUTLIER = 5.0
"""A step that took so many times the median holds an evaluation, a checkpoint, or a pause; it says nothing of steps."""
_CARRIED = frozenset({"scalar", "copy"})


@dataclasses.dataclass(slots=True)
class StepTime:
    """Seconds of one step, or the mean of some.

    ``data``, ``host`` and ``optimizer`` are times of the host in which it was not held up; ``upload`` and ``blocked``
    those in which it was. Together they make up the step.

    Attributes:
        data: waiting for the data loader.
        upload: copying to the device, as far as the host waits for it.
        host: Python and launches: whatever is none of the others.
        blocked: waiting for the device, to read a value or because the program asked to.
        optimizer: inside ``step()`` of the optimizers.
    """

    data: float = 0.0
    upload: float = 0.0
    host: float = 0.0
    blocked: float = 0.0
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        """The whole step in seconds."""
        return self.data + self.upload + self.host + self.blocked + self.optimizer


@dataclasses.dataclass(frozen=True, slots=True)
class StepTimeSummary:
    """The mean step of a run.

    Attributes:
        mean: its parts.
        steps: number of steps it is the mean of.
        estimated: True where the device is simulated: ``upload`` and ``blocked`` are estimates from bytes and calls,
            and ``host`` and ``optimizer`` contain what a device would compute.
        device: share of the time in which the device was busy, 0 to 1, beside all of this; None where nobody measured.
    """

    mean: StepTime
    steps: int
    estimated: bool
    device: float | None = None


class StepTimes:
    """Adds up the times that events carry, step by step, for the thread that trains.

    Args:
        warmup: number of steps at the start that do not count.

    Attributes:
        loads: looks at how busy the device is, 0 to 1, by whoever takes them.
    """

    NEEDED = frozenset({BatchFetched, HostRead, Uploaded})
    """Without these events a summary would be wrong; it asks for none of them itself."""

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._steps: deque[StepTime] = deque(maxlen=_MOST_STEPS)
        self._now = StepTime()
        self._held: list[tuple[float, float]] = []
        self._began = 0.0
        self._optimizing = 0.0
        self._inside = 0.0
        self._thread = 0
        self._training = False
        self._on_device = False
        self.loads: list[float] = []

    def handle(self, event: Event, ended: StepEnded | None) -> None:
        """Take note of an event, and of the step it ended."""
        if ended is not None or isinstance(event, StepEnded):
            self._end(ended or event)  # type: ignore[arg-type]
        kind = type(event)
        if kind not in _TIMED or threading.get_ident() != self._thread:
            return
        if kind is OptimizerStepping:
            self._stepping(event.optimizer, event.with_closure)  # type: ignore[attr-defined]
        elif kind is OptimizerStepped:
            self._stepped()
        elif kind is BatchFetched:
            self._fetched(event.seconds)  # type: ignore[attr-defined]
        else:
            self._hold(event)

    def interrupt(self) -> None:
        """The running step was not followed from its beginning: it does not count."""
        self._thread = 0

    def summary(self) -> StepTimeSummary | None:
        """The mean step; None where none was measured."""
        if not self._steps:
            return None
        usual = statistics.median(step.total for step in self._steps)
        steps = [step for step in self._steps if step.total <= _OUTLIER * usual]
        parts = (field.name for field in dataclasses.fields(StepTime))
        mean = StepTime(**{part: statistics.fmean(getattr(step, part) for step in steps) for part in parts})
        device = statistics.median(self.loads) if self.loads else None
        return StepTimeSummary(mean, len(steps), running_simulation() is not None, device)

    def _stepping(self, optimizer: Optimizer, with_closure: bool) -> None:
        self._optimizing = 0.0 if with_closure else perf_counter()  # a closure runs the model
        self._inside = 0.0
        if not self._on_device:
            first = next((p for group in optimizer.param_groups for p in group["params"]), None)
            self._on_device = first is not None and is_accelerator(first.device)

    def _hold(self, event: Event) -> None:
        """The host was held up, by an upload or by a wait for the device."""
        self._on_device = True
        simulated = running_simulation() is not None
        seconds = _estimate(event) if simulated else (getattr(event, "seconds", None) or 0.0)
        if isinstance(event, Uploaded):
            self._now.upload += seconds
        else:
            self._now.blocked += seconds
        if not simulated:  # an estimate is no part of what was measured around it
            self._inside += seconds
            self._held.append((perf_counter(), seconds))

    def _fetched(self, seconds: float) -> None:
        since = perf_counter() - seconds
        self._now.data += max(0.0, seconds - sum(held for when, held in self._held if when > since))
        self._inside += seconds

    def _stepped(self) -> None:
        if self._optimizing:
            self._now.optimizer += max(0.0, perf_counter() - self._optimizing - self._inside)
        self._optimizing = 0.0

    def _end(self, ended: StepEnded) -> None:
        now, step = perf_counter(), self._now
        if ended.training and not self._training:
            self._training = True
            self._steps.clear()  # those before were steps of inference
        if self._on_device and ended.index >= self._warmup and threading.get_ident() == self._thread:
            measured = step.data + step.optimizer + sum(seconds for _, seconds in self._held)
            step.host = max(0.0, now - self._began - measured)
            self._steps.append(step)
        self._began, self._now, self._held, self._thread = now, StepTime(), [], threading.get_ident()


_TIMED = frozenset({BatchFetched, CacheEmptied, HostRead, OptimizerStepped, OptimizerStepping, Synchronized, Uploaded})


def _estimate(event: Event) -> float:
    if isinstance(event, Uploaded):
        return 0.0 if event.pinned and event.non_blocking else upload_seconds(event.nbytes)
    if isinstance(event, HostRead):
        carried = event.tensor.numel() * event.tensor.element_size() if event.family in _CARRIED else 0
        return wait_seconds(event.waits, carried)
    return wait_seconds()
