"""What was repaired in a run: plain records, with a way back for each change to what the user owns."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable

from deviceguard.findings import Site

log = logging.getLogger("deviceguard")

Undo = Callable[[], None]


@dataclasses.dataclass(slots=True, eq=False)
class Repair:
    """One repair, however often it was made.

    Attributes:
        rule: code of the rule whose finding it answers.
        name: the user's name for what was repaired.
        what: what was done, ``moved to cuda:0 before the call``.
        site: the user's line.
        old: what it was, ``cpu``, ``float64``.
        new: what it is now.
        count: how often it was made.
        copies: how often data was copied for it; less than ``count`` where a copy was kept.
        nbytes: how many bytes were copied in total.
        steps: number of steps in which data was copied for it.
        undo: takes the change back; None where nothing that outlives the call was changed.
        replaces: True where only the latest change can be taken back, as for the variable of a loop.
    """

    rule: str
    name: str
    what: str
    site: Site | None
    old: str
    new: str
    count: int = 0
    copies: int = 0
    nbytes: int = 0
    steps: int = 0
    undo: Undo | None = None
    replaces: bool = False
    _last_step: int | None = None

    @property
    def is_lasting(self) -> bool:
        """True where an object of the user's was changed, so that the fault is gone from then on."""
        return self.undo is not None

    def again(self, nbytes: int, step: int | None) -> None:
        """Count the repair once more.

        Args:
            nbytes: bytes copied this time, 0 where a kept copy served.
            step: number of the running step; None outside of steps.
        """
        self.count += 1
        if nbytes:
            self.copies += 1
            self.nbytes += nbytes
            if step is not None and step != self._last_step:
                self.steps += 1
                self._last_step = step

    @property
    def price(self) -> str:
        """``moved 12 kB once``, ``moved 25 MB in each of 400 steps``; empty where nothing was copied."""
        if not self.copies:
            return ""
        if self.copies == 1:
            return f"moved {size_text(self.nbytes)} once"
        if self.steps > 1:
            return f"moved {size_text(self.nbytes / self.steps)} in each of {self.steps} steps"
        return f"moved {size_text(self.nbytes / self.copies)} {self.copies} times"


class Repairs:
    """The repairs of one session, in the order in which they were first made."""

    def __init__(self) -> None:
        self._repairs: dict[tuple[object, ...], Repair] = {}
        self._lock = threading.Lock()

    def list(self) -> list[Repair]:
        """All of them."""
        with self._lock:
            return list(self._repairs.values())

    def take(self, repair: Repair) -> Repair:
        """The repair as it is kept: the given one, or an equal one that was made before."""
        place = (repair.site.file, repair.site.line) if repair.site is not None else None
        key = (repair.rule, repair.name, repair.what, place, repair.old, repair.new)
        with self._lock:
            kept = self._repairs.setdefault(key, repair)
            if kept is not repair and repair.undo is not None:
                kept.undo = repair.undo if repair.replaces else _both(repair.undo, kept.undo)
            return kept

    def undo(self) -> int:
        """Take back all changes to what the user owns, latest first; how many there were."""
        with self._lock:
            changed = [repair for repair in self._repairs.values() if repair.undo is not None]
        done = 0
        for repair in reversed(changed):
            back, repair.undo = repair.undo, None
            try:
                if back is not None:
                    back()
                    done += 1
            except Exception:
                log.warning("deviceguard could not undo the repair of %s", repair.name, exc_info=True)
        return done


def _both(first: Undo, then: Undo | None) -> Undo:
    def undo() -> None:
        first()
        if then is not None:
            then()

    return undo


def size_text(nbytes: float) -> str:
    """``12 kB``, ``1.5 MB``."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"
