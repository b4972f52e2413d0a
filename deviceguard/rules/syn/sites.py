"""Counts what happens at each of the user's lines, and says when a line does it in nearly every step.

Shared by the rules that judge a rate: one read is no finding, a read at every step is.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deviceguard.backends.simulated import running_simulation
from deviceguard.findings import Site, Subject
from deviceguard.naming.attribution import Charge
from deviceguard.naming.frames import site_of

if TYPE_CHECKING:
    from deviceguard.context import Context


@dataclasses.dataclass(slots=True)
class Tally:
    """What is known of one line.

    Attributes:
        site: the line.
        call: what it does.
        direct: False where a library does it on the user's behalf.
        subject: the tensor, by the user's name.
        instead: what the event said to write in its place.
        avoidable: as the event said.
        count: how often it happened.
        told: how much of the count a finding has told already.
        counted: how often in the steps that ``steps`` counts.
        steps: number of steps past the warm-up in which it happened, since the first of them.
        first: number of that first step; -1 before it.
        last: number of the latest step in which it happened.
        since: first step of all, warm-up included.
        training: whether the steps counted are training steps.
        nbytes: bytes copied.
        estimate: time the calls would take on a real device.
        seconds: time the calls took.
        facts: whatever else a rule keeps about the line.
    """

    site: Site
    call: str
    direct: bool
    subject: Subject | None = None
    instead: str = ""
    avoidable: bool = True
    count: int = 0
    told: int = 0
    counted: int = 0
    steps: int = 0
    first: int = -1
    last: int = -1
    since: int = 0
    training: bool = False
    nbytes: int = 0
    estimate: float = 0.0
    seconds: float = 0.0
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def span(self) -> int:
        """Steps from the first past the warm-up to the latest, both included; 0 before the first."""
        return self.last - self.first + 1 if self.first >= 0 else 0

    @property
    def share(self) -> float:
        """Share of those steps in which it happened."""
        return self.steps / self.span if self.span else 0.0

    @property
    def how_often(self) -> str:
        """``in 6 of 6 steps``, ``24 times in 6 of 6 steps``, ``8 times`` where no steps were found."""
        if not self.steps:
            return f"{self.count} times"
        rate = f"in {self.steps} of {self.span} steps"
        per_step = round(self.counted / self.steps)
        return f"{rate}, {per_step} times in each" if per_step > 1 else rate

    def cost(self) -> list[tuple[str, float]]:
        """The facts for a finding; time is an estimate where the device is simulated, and says so."""
        facts = [("share", round(self.share, 3))]
        if self.nbytes:
            facts.append(("bytes", float(self.nbytes)))
        if running_simulation() is not None and self.estimate:
            facts.append(("estimated_seconds", self.estimate))
        elif self.seconds:
            facts.append(("seconds", self.seconds))
        return facts


class Sites:
    """The lines of one rule."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tallies: dict[tuple[Any, ...], Tally] = {}

    def find(self, charge: Charge, call: str) -> tuple[Tally, bool]:
        """The tally of the line that a call is charged to; True beside it when it is a new one."""
        frame = charge.frame
        key = (frame.f_code.co_filename, frame.f_lineno, call)
        tally = self._tallies.get(key)
        if tally is not None:
            return tally, False
        site = site_of(frame, via=charge.via)
        assert site is not None
        tally = self._tallies[key] = Tally(site, call, charge.direct, since=self._context.steps.index)
        return tally, True

    def count(self, tally: Tally, nbytes: int = 0, seconds: float | None = None, estimate: float = 0.0) -> None:
        """It happened once more, in the running step.

        Args:
            tally: the line.
            nbytes: bytes copied.
            seconds: wall time of the call; None where it was not measured.
            estimate: seconds it would take on a real device, where this one is simulated.
        """
        steps = self._context.steps
        if steps.training != tally.training:
            tally.training, tally.since = steps.training, steps.index
            tally.steps, tally.counted, tally.first, tally.last = 0, 0, -1, -1
        tally.count += 1
        tally.nbytes += nbytes
        tally.estimate += estimate
        tally.seconds += seconds or 0.0
        if steps.index >= self._context.settings.warmup_steps:
            tally.counted += 1
            if steps.index != tally.last:
                tally.steps += 1
                tally.first = steps.index if tally.first < 0 else tally.first
        tally.last = steps.index

    def is_due(self, tally: Tally, strict: bool = False) -> bool:
        """True once, when the line has done it in nearly every step.

        Args:
            tally: the line.
            strict: whether the first time past the warm-up is enough under the strict policy, inside a step; what
                comes after the loop of steps, at the end of an epoch, is judged by its rate as always.
        """
        if tally.told or not self._context.steps.training:
            return False
        if strict and self._context.settings.policy == "strict" and tally.steps and tally.direct:
            return self._context.place.is_in_turn(sys._getframe(1)) or self._is_steady(tally)
        return self._is_steady(tally)

    def closing(self, least_without_steps: int) -> Iterator[Tally]:
        """At the end of the run: the lines to be told now or told again with what came after.

        Args:
            least_without_steps: how often a line must have done it in a run in which no steps were found.
        """
        steps, settings = self._context.steps, self._context.settings
        for tally in self._tallies.values():
            if tally.told:
                if tally.count > tally.told:
                    yield tally
            elif not steps.training and (
                self._is_steady(tally) or (steps.index < settings.warmup_steps and tally.count >= least_without_steps)
            ):
                yield tally

    def all(self) -> list[Tally]:
        """Every line seen."""
        return list(self._tallies.values())

    def tell(self, tally: Tally) -> int:
        """Note that a finding tells the count so far; the part no finding has told yet."""
        news, tally.told = tally.count - tally.told, tally.count
        return news

    def _is_steady(self, tally: Tally) -> bool:
        settings = self._context.settings
        return tally.steps >= settings.min_steps and tally.share >= settings.sync_share
