"""SYN003: a device tensor copied to the host at every step."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.backends.devices import is_host
from deviceguard.context import Context
from deviceguard.events import HostRead, OptimizerStepped
from deviceguard.findings import Severity
from deviceguard.ledger.tensors import parameters_of
from deviceguard.naming.attribution import Charge
from deviceguard.rules.rule import on
from deviceguard.rules.syn.host_reads import HostReadRule
from deviceguard.rules.syn.site_rule import named
from deviceguard.rules.syn.sites import Tally


class DeviceToHostCopy(HostReadRule):
    """A device tensor is copied to the host at every step.

    What it does:
        Counts ``.cpu()``, ``.to("cpu")``, ``.numpy(force=True)`` and copies into host tensors for each line of the
        program, and reports a line that does it in nearly every step, with the bytes.

    Why it hurts:
        A blocking copy waits for everything queued before it; metrics computed on the host leave the device idle.

    Example:
        net = torch.nn.Linear(8, 3).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        target = torch.randint(0, 3, (16,), device="cuda")
        correct = 0
        for step in range(10):
            output = net(torch.randn(16, 8, device="cuda"))
            loss = torch.nn.functional.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += int((output.argmax(1).cpu().numpy() == 0).sum())

    Use instead:
        net = torch.nn.Linear(8, 3).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        target = torch.randint(0, 3, (16,), device="cuda")
        correct = torch.zeros((), dtype=torch.long, device="cuda")
        for step in range(10):
            output = net(torch.randn(16, 8, device="cuda"))
            loss = torch.nn.functional.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (output.argmax(1) == 0).sum()
        print(correct.item())

    When it stays silent:
        For copies every N steps, at the end of an epoch and in evaluation during training; for asynchronous copies into
        pinned memory; for checkpoints; for gradients handed to an optimizer that holds its parameters on the host.

    Repair:
        None.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/issues/1429
        https://github.com/cmudeeplearning11785/Fall2018-tutorials/pull/3
        https://github.com/pytorch/ignite/issues/240
    """

    code: ClassVar[str] = "SYN003"
    name: ClassVar[str] = "device-to-host-copy"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    families: ClassVar[frozenset[str]] = frozenset({"copy"})

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._offloaded: frozenset[tuple[int, ...]] = frozenset()

    @on(OptimizerStepped)
    def learn(self, event: OptimizerStepped) -> None:
        """Remember what an optimizer holds on the host that is handed its gradients: they have to come down."""
        if self.context.steps.examined and self.context.ledger.optimizer(event.optimizer).fed:
            held = (parameter for parameter in parameters_of(event.optimizer) if is_host(parameter.device))
            self._offloaded |= {tuple(parameter.shape) for parameter in held}

    def concerns(self, event: HostRead, charged: Charge) -> bool:  # noqa: D102
        return not self._offloaded or tuple(event.tensor.shape) not in self._offloaded

    def message(self, tally: Tally) -> str:  # noqa: D102
        size = tally.nbytes // max(1, tally.count)
        return (
            f"{named(tally)}, {size:,} bytes, is copied to the host with {tally.call} {tally.how_often}; "
            "each time the host waits until the device has caught up"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        return "compute the metric on the device and copy the result once, at the end or every N steps"
