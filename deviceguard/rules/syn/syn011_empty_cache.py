"""SYN011: the allocator's cache emptied at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.backends.estimates import wait_seconds
from deviceguard.events import CacheEmptied
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.rules.rule import on
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally


class EmptyCache(SiteRule):
    """``empty_cache()`` is called at every step.

    What it does:
        Counts ``torch.cuda.empty_cache()`` and its relatives for each line of the program, and reports a line that does
        it in nearly every step.

    Why it hurts:
        Giving memory back to the driver waits for the device, and the next step has to ask the driver for the same
        memory again, which is slow. It makes no room for PyTorch: the cache is used before new memory is asked for.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.empty_cache()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        Once per epoch, between training and evaluation, after a model was deleted.

    Repair:
        None.

    References:
        https://github.com/huggingface/transformers/issues/31372
        https://github.com/huggingface/transformers/pull/31530
        https://github.com/batra-mlp-lab/visdial-challenge-starter-pytorch/pull/34
    """

    code: ClassVar[str] = "SYN011"
    name: ClassVar[str] = "empty-cache"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    raises_in_strict: ClassVar[bool] = True

    @on(CacheEmptied)
    def note(self, event: CacheEmptied) -> Iterator[Finding]:
        """The cache was emptied."""
        charged = charge()
        if charged is None:
            return
        tally, _ = self.sites.find(charged, event.call)
        self.sites.count(tally, seconds=event.seconds, estimate=wait_seconds())
        if self.sites.is_due(tally, strict=True):
            yield self.told(tally)

    def message(self, tally: Tally) -> str:  # noqa: D102
        return (
            f"{tally.call} is called {tally.how_often}; each time the device is waited for, and its memory has to be "
            "asked for again"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        return "remove it, or once per epoch; against fragmentation set PYTORCH_ALLOC_CONF=expandable_segments:True"
