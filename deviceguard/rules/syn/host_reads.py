"""The common part of the rules about reads that make the host wait: count by line, tell what happens at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import HostRead, RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import Charge, charge
from deviceguard.naming.handled import handled
from deviceguard.rules.rule import Rule, on
from deviceguard.rules.syn.sites import Sites, Tally

if TYPE_CHECKING:
    from deviceguard.context import Context

_CARRIED = frozenset({"scalar", "copy"})
"""Families in which the whole tensor goes to the host."""


class HostReadRule(Rule):
    """Judges the reads of some families.

    Attributes:
        families: the families of :class:`deviceguard.events.HostRead` it is about.
        loops: how many times its least in a run without steps, in multiples of ``min_steps``.
    """

    needs_accelerator: ClassVar[bool] = True
    raises_in_strict: ClassVar[bool] = True
    families: ClassVar[frozenset[str]]
    loops: ClassVar[int] = 2

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sites = Sites(context)

    @on(HostRead)
    def note(self, event: HostRead) -> Iterator[Finding]:
        """A read of one of the rule's families."""
        if event.family not in self.families:
            return
        charged = charge()
        if charged is None or not self.concerns(event, charged):
            return
        tally, is_new = self._sites.find(charged, event.call)
        if is_new:
            self._describe(tally, event, charged)
        carried = event.tensor.numel() * event.tensor.element_size() if event.family in _CARRIED else 0
        self._sites.count(tally, carried, event.seconds)
        if self._sites.is_due(tally, strict=True) and not (tally.steps < 2 and _is_evaluating()):
            yield self._told(tally)

    @on(RunEnded)
    def close(self, event: RunEnded) -> Iterator[Finding]:
        """The rest of the counts, and the lines of a run that only ran models."""
        for tally in self._sites.closing(self.loops * self.context.settings.min_steps):
            yield self._told(tally)

    def concerns(self, event: HostRead, charged: Charge) -> bool:
        """False for reads of its families that are another rule's; asked at each read, so it must be quick."""
        return True

    def message(self, tally: Tally) -> str:
        """What is wrong, from name, device, call and rate."""
        raise NotImplementedError

    def fix(self, tally: Tally) -> str:
        """The edit that repairs it."""
        raise NotImplementedError

    def _describe(self, tally: Tally, event: HostRead, charged: Charge) -> None:
        name = handled(event.tensor, charged.frame) or "a tensor"
        tally.subject = self.context.subjects.tensor(name, event.tensor)
        tally.instead, tally.avoidable = event.instead, event.avoidable

    def _told(self, tally: Tally) -> Finding:
        through = f" (inside {tally.site.via}, which it was handed to)" if tally.site.via and tally.direct else ""
        inside = f" {tally.site.via} does this inside the call." if tally.site.via and not tally.direct else ""
        return self.finding(
            f"{self.message(tally)}{through}.{inside}",
            self.fix(tally),
            [tally.subject] if tally.subject is not None else [],
            site=tally.site,
            severity=self.severity if tally.direct and tally.avoidable else Severity.ADVICE,
            count=self._sites.tell(tally),
            first_step=tally.since if tally.steps else None,
            last_step=tally.last if tally.steps else None,
            key=tally.call,
            cost=tally.cost(),
        )


def named(tally: Tally) -> str:
    """``loss (float32 on cuda:0)``."""
    subject = tally.subject
    return f"{subject.name} ({subject.dtype} on {subject.device})" if subject is not None else "a device tensor"


def _is_evaluating() -> bool:
    import torch

    return not torch.is_grad_enabled()
