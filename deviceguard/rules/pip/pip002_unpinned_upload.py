"""PIP002: batches uploaded from pageable memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.blocking import blocking_of
from deviceguard.backends.estimates import upload_seconds
from deviceguard.events import BatchFetched, Uploaded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.naming.handled import handed
from deviceguard.rules.rule import on
from deviceguard.rules.syn.memory import BatchMemory
from deviceguard.rules.syn.site_rule import SiteRule, named
from deviceguard.rules.syn.sites import Tally

if TYPE_CHECKING:
    from deviceguard.context import Context

_LARGE = 1 << 20
"""Bytes of an upload from which pinning is sure to be felt."""


class UnpinnedUpload(SiteRule):
    """Batches are uploaded from pageable host memory.

    What it does:
        Looks at the host tensors that are uploaded in nearly every step: whether they lie in pinned memory, whether the
        program asked not to wait, and whether they come from a ``DataLoader``. ``non_blocking=True`` on pageable memory
        is a warning, since it does not do what it says; so are large batches of a loader without ``pin_memory``.

    Why it hurts:
        The driver cannot copy from pageable memory by itself: it copies to a buffer of its own first, and the host
        waits. Only from pinned memory does the upload run beside the computation.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            images = torch.randn(16, 8)
            loss = net(images.to("cuda", non_blocking=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.randn(160, 8))
        for (images,) in torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True):
            loss = net(images.to("cuda", non_blocking=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For pinned memory, for blocking uploads of data that comes from no loader, on devices that know no pinned
        memory, and outside of steps. Small batches, and what a library uploads, are advice.

    Repair:
        None.

    References:
        https://github.com/huggingface/accelerate/pull/2685
        https://github.com/pytorch/pytorch/issues/16901
        https://github.com/constantinpape/torch-em/pull/357
    """

    code: ClassVar[str] = "PIP002"
    name: ClassVar[str] = "unpinned-upload"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    mends_libraries: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._batches = BatchMemory()

    @on(BatchFetched)
    def fetched(self, event: BatchFetched) -> None:
        """The memory of a batch."""
        self._batches.take(event.batch)

    @on(Uploaded)
    def note(self, event: Uploaded) -> Iterator[Finding]:
        """An upload of a host tensor."""
        if event.kind != "move" or not event.nbytes or not event.source.dim():
            return
        kind = self._kind(event)
        charged = charge() if kind is not None else None
        if charged is None or not blocking_of(event.result.device.type).pins:
            return
        tally, is_new = self.sites.find(charged, f"{event.call} {kind}")
        if is_new:
            tally.subject = self.context.subjects.tensor(handed(event.source, charged) or "a batch", event.source)
            tally.facts.update(kind=kind, device=str(event.result.device), call=event.call)
        self.sites.count(tally, event.nbytes, event.seconds, upload_seconds(event.nbytes))
        if self.sites.is_due(tally):
            yield self.told(tally)

    def _kind(self, event: Uploaded) -> str | None:
        if event.pinned:
            return None if event.non_blocking else "blocking"
        if event.non_blocking:
            return "non_blocking"
        return "loader" if event.source in self._batches else None

    def gravity(self, tally: Tally) -> Severity:  # noqa: D102
        large = tally.nbytes >= _LARGE * tally.count
        sure = tally.facts["kind"] == "non_blocking" or (tally.facts["kind"] == "loader" and large)
        return super().gravity(tally) if sure else Severity.ADVICE

    def message(self, tally: Tally) -> str:  # noqa: D102
        call, device = tally.facts["call"], tally.facts["device"]
        size = tally.nbytes // max(1, tally.count)
        if tally.facts["kind"] == "blocking":
            return (
                f"{named(tally)} is pinned, {size:,} bytes, yet {call} to {device} waits for the copy {tally.how_often}"
            )
        if tally.facts["kind"] == "non_blocking":
            return (
                f"{named(tally)}, {size:,} bytes, goes to {device} with non_blocking=True {tally.how_often}, but "
                "lies in pageable memory, so the host waits all the same"
            )
        return (
            f"{named(tally)}, {size:,} bytes, comes from a loader without pin_memory and is uploaded to {device} "
            f"{tally.how_often}; each time the host waits"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        if tally.facts["kind"] == "blocking":
            return f"{tally.facts['call'][:-1]}{tally.facts['device']!r}, non_blocking=True)"
        return "DataLoader(..., pin_memory=True), or tensor.pin_memory(), and .to(device, non_blocking=True)"
