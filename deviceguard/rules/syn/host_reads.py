"""The common part of the rules about reads that make the host wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.backends.estimates import wait_seconds
from deviceguard.events import HostRead
from deviceguard.findings import Finding
from deviceguard.naming.attribution import Charge, charge
from deviceguard.naming.handled import handed
from deviceguard.rules.rule import on
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally

_CARRIED = frozenset({"scalar", "copy"})
"""Families in which the whole tensor goes to the host."""


class HostReadRule(SiteRule):
    """Judges the reads of some families.

    Attributes:
        families: the families of :class:`deviceguard.events.HostRead` it is about.
    """

    raises_in_strict: ClassVar[bool] = True
    families: ClassVar[frozenset[str]]

    @on(HostRead)
    def note(self, event: HostRead) -> Iterator[Finding]:
        """A read of one of the rule's families."""
        if event.family not in self.families:
            return
        charged = charge()
        if charged is None or not self.concerns(event, charged):
            return
        tally, is_new = self.sites.find(charged, event.call)
        if is_new:
            self._describe(tally, event, charged)
        carried = event.tensor.numel() * event.tensor.element_size() if event.family in _CARRIED else 0
        self.sites.count(tally, carried, event.seconds, wait_seconds(event.waits, carried))
        if self.sites.is_due(tally, strict=not _is_evaluating()):
            yield self.told(tally)

    def concerns(self, event: HostRead, charged: Charge) -> bool:
        """False for reads of its families that are another rule's; asked at each read, so it must be quick."""
        return True

    def _describe(self, tally: Tally, event: HostRead, charged: Charge) -> None:
        name = handed(event.tensor, charged) or "a tensor"
        tally.subject = self.context.subjects.tensor(name, event.tensor)
        tally.instead, tally.avoidable = event.instead, event.avoidable


def _is_evaluating() -> bool:
    import torch

    return not torch.is_grad_enabled()
