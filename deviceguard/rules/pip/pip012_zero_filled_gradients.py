"""PIP012: gradients cleared by filling with zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import GradientsCleared
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.attribution import charge
from deviceguard.naming.objects import variable_of
from deviceguard.rules.rule import on
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally

if TYPE_CHECKING:
    from types import FrameType


class ZeroFilledGradients(SiteRule):
    """Gradients are filled with zeros at every step, where dropping them is free.

    What it does:
        Counts ``zero_grad(set_to_none=False)`` for each line of the program, and reports a line that does it in nearly
        every step.

    Why it hurts:
        Each gradient is written once to clear it and read once more to add to it, and its memory is never free.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        With the default, and where a library does it.

    Repair:
        None: code that reads the gradients in between may count on zeros.

    References:
        https://github.com/pytorch/pytorch/issues/92656
        https://github.com/pytorch/pytorch/pull/92731
    """

    code: ClassVar[str] = "PIP012"
    name: ClassVar[str] = "zero-filled-gradients"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = False

    @on(GradientsCleared)
    def note(self, event: GradientsCleared) -> Iterator[Finding]:
        """Gradients were cleared."""
        charged = charge() if not event.set_to_none else None
        if charged is None or not charged.direct:
            return
        tally, is_new = self.sites.find(charged, "zero_grad()")
        if is_new:
            tally.subject = Subject(_name(event, charged.frame), "optimizer")
        self.sites.count(tally)
        if self.sites.is_due(tally):
            yield self.told(tally)

    def message(self, tally: Tally) -> str:  # noqa: D102
        name = tally.subject.name if tally.subject is not None else "the optimizer"
        return f"{name}.zero_grad(set_to_none=False) fills every gradient with zeros {tally.how_often}"

    def fix(self, tally: Tally) -> str:  # noqa: D102
        name = tally.subject.name if tally.subject is not None else "optimizer"
        return f"{name}.zero_grad(), which drops them"


def _name(event: GradientsCleared, frame: FrameType) -> str:
    return variable_of(event.owner, frame) or type(event.owner).__name__
