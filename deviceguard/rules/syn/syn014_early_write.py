"""SYN014: a pinned source overwritten while its copy to the device is in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import CopyQueued, UnsettledAccess
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.naming.frames import site_of
from deviceguard.naming.handled import handled
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_MOST = 1024
_LONG_AGO = 2
"""Steps after which a copy counts as done: nobody queues that far ahead."""


class EarlyWrite(Rule):
    """Pinned host memory is overwritten while its asynchronous upload may still be running.

    What it does:
        Remembers uploads from pinned memory that were asked not to wait until the host waits for the device in any way,
        and reports a write into that memory in between.

    Why it hurts:
        The device may read the new data instead of the old, or a mixture. A staging buffer that is filled again for the
        next batch corrupts the batch before.

    Example:
        staging = torch.empty(1000).pin_memory()
        on_device = torch.empty(1000, device="cuda")
        for step in range(3):
            staging.fill_(step)
            on_device.copy_(staging, non_blocking=True)

    Use instead:
        staging = torch.empty(1000).pin_memory()
        on_device = torch.empty(1000, device="cuda")
        copied = torch.cuda.Event()
        for step in range(3):
            copied.synchronize()
            staging.fill_(step)
            on_device.copy_(staging, non_blocking=True)
            copied.record()

    When it stays silent:
        Once the host has waited for the device, a stream or an event; for buffers that are fresh for each batch; for a
        buffer whose copy was queued two steps ago or more.

    Repair:
        None.

    References:
        https://github.com/pytorch/tutorials/pull/3261
        https://github.com/pytorch/pytorch/issues/126946
    """

    code: ClassVar[str] = "SYN014"
    name: ClassVar[str] = "early-write"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._queued_in: dict[int, int] = {}

    @on(CopyQueued)
    def queued(self, event: CopyQueued) -> None:
        """An upload that nobody waits for."""
        if event.direction == "upload":
            if len(self._queued_in) >= _MOST:
                self._queued_in.clear()
            self._queued_in[event.host.untyped_storage()._cdata] = self.context.steps.index

    @on(UnsettledAccess)
    def written(self, event: UnsettledAccess) -> Iterator[Finding]:
        """Its source is written to."""
        charged = charge() if event.direction == "upload" and event.access == "write" else None
        if charged is None or not charged.direct:
            return
        queued = self._queued_in.get(event.tensor.untyped_storage()._cdata)
        if queued is None or self.context.steps.index - queued >= _LONG_AGO:
            return
        name = handled(event.tensor, charged.frame) or "a pinned tensor"
        yield self.finding(
            f"{name} (pinned, on the host) is overwritten by {event.call}() while its asynchronous copy to the device "
            "may still be reading it.",
            "record an event after the copy and call event.synchronize() before the memory is written again, or take "
            "a second buffer in turns",
            [self.context.subjects.tensor(name, event.tensor)],
            site=site_of(charged.frame, via=charged.via),
        )
