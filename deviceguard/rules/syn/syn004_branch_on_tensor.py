"""SYN004: Python asks a device tensor for its truth value at every step."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.events import HostRead
from deviceguard.findings import Severity
from deviceguard.naming.attribution import Charge
from deviceguard.rules.syn.builtin_calls import BuiltinCalls
from deviceguard.rules.syn.host_reads import HostReadRule
from deviceguard.rules.syn.site_rule import named
from deviceguard.rules.syn.sites import Tally


class BranchOnTensor(HostReadRule):
    """Python asks a device tensor for its truth value at every step.

    What it does:
        Counts ``if``, ``while``, ``assert``, ``not``, ``and``, ``or``, ``any()``, ``x in t``, ``torch.equal`` and
        ``torch.allclose`` on device tensors for each line of the program, and reports a line that does it in nearly
        every step. Checks that PyTorch makes for itself inside a call (of a distribution's arguments, of a matrix that
        is inverted) are advice.

    Why it hurts:
        Python cannot go on before it knows the answer, so the host waits for the device, once for each condition. A
        check of each parameter's gradient is as many waits as there are parameters.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            if not torch.isfinite(loss):
                raise FloatingPointError
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        bad = torch.zeros((), dtype=torch.bool, device="cuda")
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            bad |= ~torch.isfinite(loss.detach())
            optimizer.step()
        if bad:
            raise FloatingPointError

    When it stays silent:
        For conditions on host values, for checks every N steps or at the end, in evaluation during training, and for
        what optimizers and ``GradScaler`` ask by themselves.

    Repair:
        None.

    References:
        https://github.com/HyperGAN/HyperGAN/pull/355
        https://github.com/pytorch/pytorch/issues/60691
        https://github.com/allenai/OLMo/pull/601
    """

    code: ClassVar[str] = "SYN004"
    name: ClassVar[str] = "branch-on-tensor"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    families: ClassVar[frozenset[str]] = frozenset({"branch", "check"})
    numbers: ClassVar[BuiltinCalls] = BuiltinCalls("max", "min", "sorted")

    def concerns(self, event: HostRead, charged: Charge) -> bool:
        """Not for the conditions inside ``max()`` and the like, which are SYN006's."""
        return event.family == "check" or not self.numbers.running_in(charged.frame)

    def message(self, tally: Tally) -> str:  # noqa: D102
        asked = "its own check of" if not tally.avoidable else "the condition"
        if tally.call != "bool()":
            return f"{tally.call} on {named(tally)} has to know a value {tally.how_often}; each time the host waits"
        return f"{asked} {named(tally)} is evaluated by Python {tally.how_often}; each time the host waits"

    def fix(self, tally: Tally) -> str:  # noqa: D102
        if tally.instead:
            return tally.instead
        if not tally.avoidable:
            return "leave it if it is needed; else take it out of the step"
        return "keep a flag on the device (bad |= ...) and look at it every N steps; choose values with torch.where"
