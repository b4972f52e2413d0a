"""What the guard has to say: plain frozen data, read by policies and reports, never changed by them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class Severity(enum.Enum):
    """How much a finding matters."""

    ERROR = "error"
    """The run is wrong or will crash."""
    WARNING = "warning"
    """The run is slow, fragile, or loses work."""
    ADVICE = "advice"
    """The run could be faster or clearer; never raised, never fails a test."""

    @property
    def rank(self) -> int:
        """0 for the worst, growing with harmlessness; sorts findings worst first."""
        return tuple(Severity).index(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's code.

    Attributes:
        file: path as Python knows it (a notebook cell has its cell file name).
        line: line number, counted from 1; 0 where no line is known.
        function: name of the function around it, ``<module>`` at the top level.
        source: text of the line without indentation, or None where the source is not available.
        via: the library through whose call the event came, if any (``"tqdm"``), else None.
    """

    file: str
    line: int
    function: str = "<module>"
    source: str | None = None
    via: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """One object a finding is about, by the name the user gave it.

    Attributes:
        name: ``net.encoder.layers[3].weight``, ``images``, ``optimizer``.
        kind: what it is: ``input``, ``parameter``, ``buffer``, ``model``, ``optimizer``, ``tensor``, ...
        device: ``cuda:0``; None where it does not apply.
        dtype: ``float32``; None where it does not apply.
        shape: sizes; None where it does not apply.
        made_at: where it was made or last moved, if known.
    """

    name: str
    kind: str
    device: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    made_at: Site | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with everything needed to fix it.

    Attributes:
        rule: code, ``DEV001``.
        name: the rule's name, ``input-device``.
        severity: see :class:`Severity`.
        message: what is wrong with which object, at most three lines.
        fix: the edit that repairs it.
        site: the user's line; None only until the engine has filled it in.
        subjects: the objects it is about, the most important first.
        count: how often it happened; the report adds up.
        first_step: training step of the first occurrence, counted from 0; None outside of steps.
        last_step: training step of the latest occurrence.
        key: what makes two findings the same beside rule and site; usually empty.
        ranks: the ranks of a job that had it; empty outside of jobs with several.
        is_of_this_rank: False where only other ranks had it.
        cost: measured or estimated extra facts (bytes, seconds, share of steps), for reports.
    """

    rule: str
    name: str
    severity: Severity
    message: str
    fix: str
    site: Site | None = None
    subjects: tuple[Subject, ...] = ()
    count: int = 1
    first_step: int | None = None
    last_step: int | None = None
    key: str = ""
    cost: tuple[tuple[str, float], ...] = ()
    ranks: tuple[int, ...] = ()
    is_of_this_rank: bool = True

    @property
    def identity(self) -> tuple[Any, ...]:
        """Findings with equal identity are one finding seen again."""
        place = (self.site.file, self.site.line) if self.site else ("", 0)
        return (self.rule, *place, self.key)

    @property
    def seconds(self) -> float:
        """The time it has cost so far, measured or estimated, in seconds; 0 where that is not known."""
        return max((value for name, value in self.cost if name in _TIMES), default=0.0)

    @property
    def is_estimate(self) -> bool:
        """True where ``seconds`` was not measured."""
        return any(name == _ESTIMATED for name, _ in self.cost)

    def merged_with(self, later: Finding) -> Finding:
        """This finding, seen again as ``later``: counts add up, steps widen, the newer text stands."""
        return dataclasses.replace(
            later,
            count=self.count + later.count,
            first_step=_lower(self.first_step, later.first_step),
            last_step=_higher(self.last_step, later.last_step),
            ranks=self.ranks or later.ranks,
        )


_ESTIMATED = "estimated_seconds"
_TIMES = ("seconds", _ESTIMATED)


def _lower(one: int | None, other: int | None) -> int | None:
    return min((step for step in (one, other) if step is not None), default=None)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)
