"""SYN010: the program itself waits for the device at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.backends.estimates import wait_seconds
from deviceguard.events import Synchronized
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.rules.rule import on
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally


class ExplicitSynchronize(SiteRule):
    """``synchronize()`` is called at every step.

    What it does:
        Counts ``torch.cuda.synchronize()``, ``torch.accelerator.synchronize()``, ``stream.synchronize()`` and
        ``event.synchronize()`` for each line of the program, and reports a line that does it in nearly every step.

    Why it hurts:
        The host stops queueing work until the device has nothing left to do; the device then waits for the host. Often
        it is left over from measuring time.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    When it stays silent:
        Every N steps, at the end of an epoch, around a measurement outside of the steps; for waits of streams for each
        other (``wait_stream``, ``wait_event``), which do not stop the host; for a wait that an asynchronous copy to the
        host needs.

    Repair:
        None.

    References:
        https://github.com/HuguesTHOMAS/KPConv-PyTorch/issues/22
        https://github.com/facebookresearch/ConvNeXt/issues/106
        https://github.com/NVIDIA/apex/issues/316
    """

    code: ClassVar[str] = "SYN010"
    name: ClassVar[str] = "explicit-synchronize"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    raises_in_strict: ClassVar[bool] = True

    @on(Synchronized)
    def note(self, event: Synchronized) -> Iterator[Finding]:
        """A wait that the program asked for."""
        charged = charge() if event.scope != "query" else None
        if charged is None:
            return
        tally, _ = self.sites.find(charged, event.call)
        tally.avoidable = tally.avoidable and not (event.needed or event.scope == "event")
        self.sites.count(tally, seconds=event.seconds, estimate=wait_seconds())
        if self.sites.is_due(tally, strict=tally.avoidable):
            yield self.told(tally)

    def message(self, tally: Tally) -> str:  # noqa: D102
        return f"{tally.call} is called {tally.how_often}; each time the host stops until the device is done"

    def fix(self, tally: Tally) -> str:  # noqa: D102
        if not tally.avoidable:
            return "wait as late as possible: one step after the copy was queued it costs nothing"
        return "take it out of the step, or call it on logging steps only; time with torch.cuda.Event pairs"
