"""SYN006: a device tensor passed where a Python number is wanted."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.events import HostRead
from deviceguard.findings import Severity
from deviceguard.naming.attribution import Charge
from deviceguard.rules.syn.builtin_calls import BuiltinCalls
from deviceguard.rules.syn.host_reads import HostReadRule
from deviceguard.rules.syn.site_rule import named
from deviceguard.rules.syn.sites import Tally


class TensorAsNumber(HostReadRule):
    """A device tensor is passed where a Python number is wanted.

    What it does:
        Counts device tensors given as ``alpha=``, ``value=``, sizes, slice bounds, list indices, ``range`` and fill
        values, and those that ``max()``, ``min()`` and ``sorted()`` of Python compare, for each line of the program. It
        reports a line that does it in nearly every step.

    Why it hurts:
        PyTorch reads the number silently, one wait for the device for each tensor: no ``.item()`` stands in the code.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            output = net(torch.randn(16, 8, device="cuda"))
            loss = output.sub(1.0, alpha=output.detach().mean()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            output = net(torch.randn(16, 8, device="cuda"))
            loss = (output - output.detach().mean()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For 0-dim device tensors where PyTorch takes tensors (``x * t``, ``torch.lerp``, ``fill_``), for Python numbers,
        and for host tensors.

    Repair:
        None.

    References:
        https://github.com/Koratahiu/Advanced_Optimizers/pull/5
        https://github.com/pytorch/pytorch/issues/105641
        https://github.com/microsoft/EASIER/pull/23
    """

    code: ClassVar[str] = "SYN006"
    name: ClassVar[str] = "tensor-as-number"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    families: ClassVar[frozenset[str]] = frozenset({"number", "branch"})
    loops: ClassVar[int] = 1
    numbers: ClassVar[BuiltinCalls] = BuiltinCalls("max", "min", "sorted")

    def concerns(self, event: HostRead, charged: Charge) -> bool:
        """Of the conditions only those inside ``max()`` and the like."""
        return event.family == "number" or self.numbers.running_in(charged.frame)

    def message(self, tally: Tally) -> str:  # noqa: D102
        where = "compared by Python's max(), min() or sorted()" if tally.call == "bool()" else f"given to {tally.call}"
        return f"{named(tally)} is {where} as a number {tally.how_often}; each time the host waits for its value"

    def fix(self, tally: Tally) -> str:  # noqa: D102
        if tally.call == "bool()":
            return "torch.stack(values).max(), or torch.maximum(a, b)"
        if tally.call == "alpha=":
            return "multiply instead: a - alpha * b"
        return tally.instead or "pass a Python number that is known on the host, or stay with tensor arithmetic"
