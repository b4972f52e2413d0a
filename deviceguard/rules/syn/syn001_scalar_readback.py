"""SYN001: a device tensor's value read as a Python number at every step."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.context import Context
from deviceguard.events import BackwardStarted, HostRead, ModuleCalled
from deviceguard.findings import Severity
from deviceguard.naming.attribution import Charge
from deviceguard.rules.rule import on
from deviceguard.rules.syn.host_reads import HostReadRule
from deviceguard.rules.syn.site_rule import named
from deviceguard.rules.syn.sites import Tally


class ScalarReadback(HostReadRule):
    """The value of a device tensor is read as a Python number at every step.

    What it does:
        Counts ``.item()``, ``float()``, ``int()`` and ``.tolist()`` of device tensors for each line of the program, and
        reports a line that does it in nearly every step after the warm-up, with the share of steps.

    Why it hurts:
        The host has to wait until the device has finished everything queued before the value, and the device then
        waits for the host to queue more. A GPU that is read at every step is often no faster than the CPU.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        running_loss = 0.0
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running_loss += loss.item()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        running_loss = torch.zeros((), device="cuda")
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running_loss += loss.detach()
        print(running_loss.item() / 10)

    When it stays silent:
        For tensors on the host; for reads every N steps, at the end of an epoch and in evaluation loops; for the choice
        made from a single sample, which the host needs (an action, the next word), without gradients or within an
        episode that is learned from as a whole; for what optimizers, ``GradScaler`` and loaders read by themselves; on
        hosts without an accelerator. What another library reads inside its own call is advice.

    Repair:
        None: what the number is used for is the program's own business.

    References:
        https://github.com/meta-pytorch/torchtune/pull/522
        https://github.com/jolibrain/joliGEN/pull/374
        https://github.com/rosinality/style-based-gan-pytorch/pull/50
    """

    code: ClassVar[str] = "SYN001"
    name: ClassVar[str] = "scalar-readback"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    families: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._acting = False
        self._calls = 0
        self._is_episodic = False

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A single sample: a policy asked for an action, a model for its next word.

        With gradients too, where several such calls come before one backward: a policy that learns from an episode.
        """
        if event.is_root:
            single = _is_single(event)
            self._calls += single
            self._is_episodic = self._is_episodic or self._calls > 1
            self._acting = single and (self._is_episodic or not _records_gradients())

    @on(BackwardStarted)
    def learned(self, event: BackwardStarted) -> None:
        """The calls so far have been learned from."""
        self._calls = 0

    def concerns(self, event: HostRead, charged: Charge) -> bool:  # noqa: D102
        return not self._acting or event.tensor.is_floating_point()

    def message(self, tally: Tally) -> str:  # noqa: D102
        return (
            f"{named(tally)} is read with {tally.call} {tally.how_often}; "
            "each time the host waits until the device has caught up"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        name = tally.subject.name if tally.subject is not None else "it"
        if not name.isidentifier():
            return "sum it on the device and read the sum every N steps, or at the end of the epoch"
        return f"sum {name}.detach() on the device and read the sum every N steps, or at the end of the epoch"


def _records_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()


def _is_single(event: ModuleCalled) -> bool:
    """True for a call whose first argument is one sample: a batch of one, or numbers without a batch dimension."""
    given = event.args[0] if event.args else None
    shape = getattr(given, "shape", None)
    if shape is None or given is None:
        return False
    return int(shape[0]) == 1 if len(shape) > 1 else len(shape) == 1 and bool(given.is_floating_point())
