"""Which lines do something in nearly every step that is watched call by call."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deviceguard.events import OptimizerStepped, StepMarked
from deviceguard.naming.frames import spot_of, user_frame

if TYPE_CHECKING:
    from deviceguard.findings import Site
    from deviceguard.steps import Steps

_LEAST = 3
"""So many watched steps must show a line before it is spoken of."""


_BACKWARD = frozenset({"backward", "grad"})
"""What the backward pass does follows from a line of the forward pass: it is told where no such line is found."""

_WORDS = {
    "__getitem__": "indexing",
    "__setitem__": "indexed assignment",
    "__bool__": "a truth test",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "use as an index",
    "__repr__": "printing",
    "__format__": "formatting",
    "__contains__": "`in`",
    "to": ".to()",
    "cpu": ".cpu()",
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
}


def words_for(function: str) -> str:
    """A torch function as a person would speak of it: ``indexing`` for ``__getitem__``, ``median()``."""
    return _WORDS.get(function, f"{function}()")


@dataclasses.dataclass(slots=True)
class Habit:
    """What a line did.

    Attributes:
        site: the line.
        call: name of the function it calls.
        detail: what more there is to say of it.
        steps: number of watched steps in which it did it.
        times: how often in all.
        reported: how many of these times are in the report.
    """

    site: Site
    call: str
    detail: str = ""
    steps: int = 0
    times: int = 0
    reported: int = 0


class Habits:
    """Counts lines by watched step.

    Args:
        steps: the steps of the session.
        share: least share of the watched steps in which a line must do it.
    """

    def __init__(self, steps: Steps, share: float) -> None:
        self._steps = steps
        self._share = share
        self._lines: dict[tuple[str, int], Habit] = {}
        self._now: set[tuple[str, int]] = set()
        self._trained = False
        self.watched = 0

    def note(self, call: str, detail: str = "") -> None:
        """The running line did it."""
        site = spot_of(user_frame())
        if site is None:
            return
        place = (site.file, site.line)
        habit = self._lines.setdefault(place, Habit(site, call))
        habit.detail = detail or habit.detail
        habit.times += 1
        self._now.add(place)

    def stepped(self, event: OptimizerStepped) -> None:
        """An optimizer stepped: what is being collected is a training step."""
        self._trained = True

    def marked(self, event: StepMarked) -> list[Habit]:
        """A step is over; the lines that are habits by now."""
        now, self._now = self._now, set()
        counts = event.recorded and (self._trained or not self._steps.training)
        self._trained = False
        if not counts:
            return []
        self.watched += 1
        for place in now:
            self._lines[place].steps += 1
        habits = [self._lines[place] for place in sorted(now) if self._is_habit(self._lines[place])]
        return [habit for habit in habits if habit.call not in _BACKWARD] or habits

    def _is_habit(self, habit: Habit) -> bool:
        return habit.steps >= _LEAST and habit.steps >= self._share * self.watched


def newly(habit: Habit) -> int:
    """How often a line did it since this was last asked."""
    more, habit.reported = habit.times - habit.reported, habit.times
    return more
