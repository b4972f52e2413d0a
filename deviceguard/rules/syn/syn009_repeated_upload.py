"""SYN009: the same host memory uploaded again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.estimates import upload_seconds
from deviceguard.backends.facts import total_memory
from deviceguard.events import Uploaded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.naming.handled import handed
from deviceguard.rules.rule import on
from deviceguard.rules.syn.memory import Regions
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally

if TYPE_CHECKING:
    from deviceguard.context import Context

_FITS = 0.25
_SURE = 3
"""Uploads of the same content after which it counts as repeated."""


class RepeatedUpload(SiteRule):
    """The same host memory is uploaded again, in every step or in every epoch.

    What it does:
        Recognises host memory that was uploaded before and has not been written to since (by identity of the storage,
        its count of changes and a sample of its content), and reports a line that uploads known memory in nearly every
        step: a buffer kept on the host, or a data set that would fit into the device's memory.

    Why it hurts:
        Each upload from pageable memory waits for the device. What does not change can stay there.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        mean = torch.randn(8)
        for step in range(12):
            loss = net(torch.randn(16, 8, device="cuda") - mean.to("cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        mean = torch.randn(8).to("cuda")
        for step in range(12):
            loss = net(torch.randn(16, 8, device="cuda") - mean).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For memory that was written to in between (replay buffers, offloaded weights that are trained, arrays that an
        environment fills), for freshly collated batches, for data that is large beside the device's memory, and for the
        first two passes over a data set.

    Repair:
        None.

    References:
        https://github.com/Nerogar/OneTrainer/pull/1608
        https://github.com/ContinualAI/avalanche/issues/839
        https://github.com/scverse/scvi-tools/issues/1058
    """

    code: ClassVar[str] = "SYN009"
    name: ClassVar[str] = "repeated-upload"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._regions = Regions()

    @on(Uploaded)
    def note(self, event: Uploaded) -> Iterator[Finding]:
        """An upload of a host tensor."""
        if event.kind != "move" or not event.nbytes:
            return
        charged = charge()
        if charged is None or self._regions.upload(event.source) < _SURE or not _fits(event):
            return
        tally, is_new = self.sites.find(charged, event.call)
        if is_new:
            name = handed(event.source, charged) or "a host tensor"
            tally.subject = self.context.subjects.tensor(name, event.source)
            tally.facts["device"] = str(event.result.device)
            tally.facts["whole"] = (
                event.source.numel() * event.source.element_size() == event.source.untyped_storage().nbytes()
            )
        self.sites.count(tally, event.nbytes, event.seconds, upload_seconds(event.nbytes))
        if self.sites.is_due(tally):
            yield self.told(tally)

    def message(self, tally: Tally) -> str:  # noqa: D102
        name = tally.subject.name if tally.subject is not None else "host memory"
        what = f"{name} (on the host)" if tally.facts["whole"] else f"the data behind {name} (on the host)"
        return (
            f"{what} is uploaded to {tally.facts['device']} again without having changed, {tally.how_often}, "
            f"{tally.nbytes:,} bytes so far"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        if tally.facts["whole"]:
            return (
                f"upload it once before the loop: .to({tally.facts['device']!r}) there, and use that copy in the step"
            )
        return f"it fits into the device's memory: move all of it to {tally.facts['device']!r} once and index it there"


def _fits(event: Uploaded) -> bool:
    size = event.source.untyped_storage().nbytes()
    return bool(size <= _FITS * total_memory(event.result.device))
