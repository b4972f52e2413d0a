"""SYN013: host data read before its asynchronous copy is done."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.blocking import present_types, wait_call
from deviceguard.events import HostRead, RunEnded, StepEnded, Synchronized, UnsettledAccess, Uploaded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.naming.expressions import running_node
from deviceguard.naming.frames import site_of
from deviceguard.naming.handled import handled
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context


class EarlyRead(Rule):
    """A host tensor is read while the asynchronous copy that fills it may still be running.

    What it does:
        Remembers copies to the host that were asked not to wait (``.to("cpu", non_blocking=True)``,
        ``pinned.copy_(x, non_blocking=True)``) until the host waits for the device in any way, and reports a use of
        their data in between.

    Why it hurts:
        The call returns before the data is there. What is read is whatever the memory held before: zeros, or the values
        of an earlier step. Nothing is raised, and on a fast day the result is right.

    Example:
        x = torch.randn(1000, device="cuda")
        on_host = x.to("cpu", non_blocking=True)
        total = float(on_host.sum())

    Use instead:
        x = torch.randn(1000, device="cuda")
        on_host = x.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        copied.synchronize()
        total = float(on_host.sum())

    When it stays silent:
        Once the host has waited for the device, a stream or an event, or an event said that all is done; for blocking
        copies; while the memory is only handed on.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/issues/140296
        https://github.com/pytorch/pytorch/issues/86264
        https://github.com/sgl-project/sglang/pull/16493
    """

    code: ClassVar[str] = "SYN013"
    name: ClassVar[str] = "early-read"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._suspected: dict[str, Finding] = {}

    @on(UnsettledAccess)
    def used(self, event: UnsettledAccess) -> Iterator[Finding]:
        """A host tensor is used while a copy to it is queued."""
        charged = charge() if event.direction == "download" else None
        if charged is None or not charged.direct:
            return
        name = handled(event.tensor, charged.frame) or "a host tensor"
        device = next(iter(present_types()), "device")
        found = self.finding(
            f"{name} (on the host) is used by {event.call}() while its asynchronous copy from the device may still be "
            "running: it may hold old data.",
            f"wait first: record an event after the copy and call event.synchronize(), or {wait_call(device)}; or copy "
            "without non_blocking",
            [self.context.subjects.tensor(name, event.tensor)],
            site=site_of(charged.frame, via=charged.via),
        )
        if event.access == "alias" and _is_only_named(charged.frame):
            self._suspected[str(found.site)] = found
        else:
            yield found

    @on(Synchronized, HostRead, Uploaded)
    def settled(self, event: Synchronized | HostRead | Uploaded) -> None:
        """The host has waited, in time for what was only given a name."""
        if self._suspected and not (isinstance(event, Uploaded) and event.non_blocking and event.pinned):
            self._suspected.clear()

    @on(StepEnded, RunEnded)
    def too_late(self, event: StepEnded | RunEnded) -> Iterator[Finding]:
        """Nobody waited before the step ended."""
        yield from self._suspected.values()
        self._suspected.clear()


def _is_only_named(frame: FrameType) -> bool:
    """True where the running call's result is bound to a name and nothing else is done with it on the line."""
    node = running_node(frame)
    return isinstance(getattr(node, "parent", None), ast.Assign | ast.AnnAssign)
