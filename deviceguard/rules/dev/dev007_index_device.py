"""DEV007: a host table looked up with a device index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import CallFailed, Event
from deviceguard.findings import Finding, Severity
from deviceguard.naming.phrases import came_from, site_of_call
from deviceguard.remedies import MoveOperands, Remedy
from deviceguard.rules.dev.blame import blame
from deviceguard.rules.rule import Rule, on


class IndexDevice(Rule):
    """A tensor on the host is indexed or looked up with an index that is on a device.

    What it does:
        Explains the refusal: which table stayed on the host, which index is on the device, and where the table comes
        from. Covers ``table[index]``, ``gather``, ``index_select``, ``take`` and ``F.embedding``.

    Why it hurts:
        The lookup raises on every accelerator, while the same line works on a CPU. The reverse (a host index into a
        device tensor) is legal, though slow in a loop.

    Example:
        betas = torch.linspace(1e-4, 2e-2, 100)
        t = torch.randint(0, 100, (8,), device="cuda")
        scale = betas[t]

    Use instead:
        betas = torch.linspace(1e-4, 2e-2, 100, device="cuda")
        t = torch.randint(0, 100, (8,), device="cuda")
        scale = betas[t]

    When it stays silent:
        For a host index into a device tensor, and for a table that hangs unregistered on a module (DEV004).

    Repair:
        The table is moved to the device of the index.

    References:
        https://github.com/modelscope/modelscope/issues/220
        https://github.com/pyg-team/pytorch_geometric/issues/8817
    """

    code: ClassVar[str] = "DEV007"
    name: ClassVar[str] = "index-device"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A lookup that PyTorch refused."""
        found = blame(event, self.context)
        if found is None or found.code != self.code or found.tensor is None:
            return
        index = next(
            (o for o in event.operands if o.tensor is not found.tensor and o.tensor.device == found.home), None
        )
        by = index.expression or index.role if index is not None else "an index"
        subjects = [self.context.subjects.tensor(found.name, found.tensor, "table")]
        if index is not None:
            subjects.append(self.context.subjects.tensor(by, index.tensor, "index"))
        yield self.finding(
            f"{found.name} is on {found.device}, but it is looked up with {by}, which is on {found.home}."
            f"{came_from(found.origin)}",
            f"move the table once, where it is made: {found.name} = {found.name}.to({str(found.home)!r})",
            subjects,
            site=site_of_call(event),
            key=found.name,
        )

    def remedy(self, event: Event) -> Remedy | None:
        """The host tensor goes to the others."""
        found = blame(event, self.context) if isinstance(event, CallFailed) else None
        return MoveOperands(found.home) if found is not None and found.home is not None else None
