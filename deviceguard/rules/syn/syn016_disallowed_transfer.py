"""SYN016: a transfer that the program, or the region, has said it does not want."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import CopyQueued, HostRead, MovedBetweenDevices, Uploaded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import Charge, charge
from deviceguard.naming.frames import site_of
from deviceguard.naming.handled import handed
from deviceguard.rules.rule import Rule, on
from deviceguard.transfer_policy import region_level, verdict

if TYPE_CHECKING:
    from deviceguard.context import Context

_MOST_SITES = 4096
_WAYS = {
    "host_to_device": "goes from the host to {there}",
    "device_to_host": "goes from {here} to the host",
    "device_to_device": "goes from {here} to {there}",
}


class DisallowedTransfer(Rule):
    """A transfer between host and device, or between devices, in a direction that the settings or the region disallow.

    What it does:
        Follows the settings ``host_to_device``, ``device_to_host`` and ``device_to_device``, and the regions of
        ``deviceguard.transfers(...)``. Each is ``allow`` (the default), ``log`` or ``disallow``, which are about
        *implicit* transfers (printing, branching, a host index, a number written into a device tensor), or
        ``log_explicit`` or ``disallow_explicit``, which are about those the program wrote too (``.to``, ``.cpu``,
        ``.item``). What is logged is advice, counted by line; what is disallowed is an error, each time.

    Why it hurts:
        A program whose inner loop was made free of transfers stays so only if somebody watches. One ``print`` or one
        ``if`` on a tensor brings the wait back, and nothing looks different.

    Example:
        import deviceguard

        x = torch.randn(8, device="cuda")
        with deviceguard.watch(), deviceguard.transfers(device_to_host="disallow"):
            if x.sum() > 0:
                x = -x

    Use instead:
        import deviceguard

        x = torch.randn(8, device="cuda")
        with deviceguard.watch(), deviceguard.transfers(device_to_host="disallow"):
            x = torch.where(x.sum() > 0, -x, x)

    When it stays silent:
        Where nobody disallowed anything; for what a compiler does while it compiles; for what optimizers,
        ``GradScaler``, loaders and other parts of PyTorch transfer by themselves; in other threads and tasks than that
        of the region.

    Repair:
        None: it was the program that asked not to have it.

    References:
        https://docs.jax.dev/en/latest/transfer_guard.html
        https://github.com/pytorch/pytorch/issues/190217
    """

    code: ClassVar[str] = "SYN016"
    name: ClassVar[str] = "disallowed-transfer"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.2.0"
    needs_accelerator: ClassVar[bool] = True
    raises_again: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._told: dict[tuple[Any, ...], Finding] = {}

    @on(Uploaded)
    def uploaded(self, event: Uploaded) -> Iterator[Finding]:
        """Host data went to a device."""
        action = self._action("host_to_device", event.explicit)
        if action != "allow":
            yield from self._judge(action, "host_to_device", event, event.source, event.result)

    @on(HostRead)
    def read(self, event: HostRead) -> Iterator[Finding]:
        """The host read a value."""
        action = self._action("device_to_host", event.explicit)
        if action != "allow":
            yield from self._judge(action, "device_to_host", event, event.tensor, None)

    @on(CopyQueued)
    def queued(self, event: CopyQueued) -> Iterator[Finding]:
        """An asynchronous copy to the host; one to the device is an upload like any other."""
        action = self._action("device_to_host", True) if event.direction == "download" else "allow"
        if action != "allow":
            yield from self._judge(action, "device_to_host", event, event.host, None)

    @on(MovedBetweenDevices)
    def moved(self, event: MovedBetweenDevices) -> Iterator[Finding]:
        """A copy from one device to another."""
        action = self._action("device_to_device", True)
        if action != "allow":
            yield from self._judge(action, "device_to_device", event, event.source, event.result)

    def _action(self, direction: str, explicit: bool) -> str:
        level = region_level(direction) or getattr(self.context.settings, direction)
        return "allow" if level == "allow" else verdict(level, explicit)

    def _judge(self, action: str, direction: str, event: Any, source: Any, result: Any) -> Iterator[Finding]:
        charged = charge()
        if charged is None:
            return
        frame = charged.frame
        key = (action, direction, event.call, frame.f_code.co_filename, frame.f_lineno)
        found = self._told.get(key)
        if found is None:
            found = self._found(action, direction, event, source, result, charged)
            if len(self._told) < _MOST_SITES:
                self._told[key] = found
        yield found

    def _found(self, action: str, direction: str, event: Any, source: Any, result: Any, charged: Charge) -> Finding:
        explicit = getattr(event, "explicit", True)
        tensor = source if hasattr(source, "device") else result
        name = (handed(source, charged) if source is tensor else None) or "host data"
        way = _WAYS[direction].format(here=getattr(source, "device", "a device"), there=getattr(result, "device", ""))
        rest = "which is not allowed here" if action == "disallow" else "which is recorded"
        fix = getattr(event, "instead", "") or _FIXES[direction]
        return self.finding(
            f"{name} {way} by {event.call}: an {'explicit' if explicit else 'implicit'} {direction} transfer, {rest}.",
            f"{fix}; or deviceguard.transfers({direction}='allow') around it",
            [self.context.subjects.tensor(name, tensor)],
            site=site_of(charged.frame, via=charged.via),
            severity=Severity.ERROR if action == "disallow" else Severity.ADVICE,
            key=f"{action} {direction} {event.call}",
        )


_FIXES = {
    "host_to_device": "make it on the device, or upload it before",
    "device_to_host": "keep it on the device",
    "device_to_device": "make it on the device it is needed on",
}
