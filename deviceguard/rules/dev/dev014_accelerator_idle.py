"""DEV014: there is an accelerator, and the model that trains is not on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import is_accelerator, is_host, present
from deviceguard.events import ModuleCalled, ModuleConverted, OptimizerStepped
from deviceguard.findings import Finding, Severity
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from deviceguard.context import Context

_STEPS_TO_WAIT = 3


class AcceleratorIdle(Rule):
    """The run asked for an accelerator, or the host has one, and the parameters that train are on the CPU.

    What it does:
        After a few optimizer steps, looks where the parameters are that the optimizer changed.

    Why it hurts:
        Nothing fails: the model trains at the speed of the CPU while the accelerator is idle and paid for.

    Example:
        net = torch.nn.Linear(8, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(5):
            opt.zero_grad()
            net(torch.randn(4, 8)).sum().backward()
            opt.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(5):
            opt.zero_grad()
            net(torch.randn(4, 8, device="cuda")).sum().backward()
            opt.step()

    When it stays silent:
        When the program chose the CPU (``model.to("cpu")``, ``torch.set_default_device("cpu")``), unless it has also
        imported ``torch_xla``, which nobody does without wanting the device; when anything that runs or trains is on
        the accelerator; in runs of one or two steps.

    Repair:
        None is applied: moving a model in the middle of its training is the program's to do.

    References:
        https://github.com/pytorch/xla/issues/3675
    """

    code: ClassVar[str] = "DEV014"
    name: ClassVar[str] = "accelerator-idle"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._in_use = False
        self._chosen = False
        self._on_host = 0

    @on(ModuleConverted)
    def converted(self, event: ModuleConverted) -> None:
        """A move to the accelerator is use of it; one to the CPU is a choice."""
        devices = {device.partition(":")[0] for device in event.moved_to}
        if any(_is_accelerator(device) for device in devices):
            self._in_use = True
        elif devices:
            self._chosen = True

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A model on the accelerator runs."""
        if event.is_root and not self._in_use and self.context.steps.examined:
            self._in_use = _any_on_accelerator(event.module)

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A step is done: where are the parameters it changed?"""
        if self._in_use or self._on_host >= _STEPS_TO_WAIT:
            return
        trained = [parameter for parameter in _parameters(event.optimizer) if parameter.grad is not None]
        if any(not is_host(parameter.device) for parameter in trained):
            self._in_use = True
            return
        self._on_host += bool(trained)
        backend = present() if self._on_host == _STEPS_TO_WAIT else None
        if backend is None or (self._was_chosen() and not backend.was_asked_for()):
            return
        subject = self.context.subjects.parameter(trained[0])
        device = backend.device_name()
        model, _ = self.context.ledger.owner_of(trained[0])
        owner = self.context.subjects.model(model) if model is not None else None
        name = owner.name if owner is not None else subject.name
        yield self.finding(
            f"{name} trains on the CPU although this run has an accelerator ({device}): {subject.name} and the rest of "
            f"what {self.context.subjects.optimizer(event.optimizer).name} steps are on {subject.device}.",
            f"{name}.to({device!r}) before the optimizer is made, and move each batch; to stay on the CPU on purpose, "
            f"say {name}.to('cpu')",
            [subject if owner is None else owner, subject],
        )

    def _was_chosen(self) -> bool:
        import torch

        return self._chosen or _default_was_set(torch)


def _is_accelerator(device_type: str) -> bool:
    import torch

    return is_accelerator(torch.device(device_type))


def _any_on_accelerator(module: nn.Module) -> bool:
    return any(is_accelerator(parameter.device) for parameter in module.parameters())


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _default_was_set(torch: object) -> bool:
    """True where the program has set a default device itself."""
    holder = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    return getattr(holder, "device_context", None) is not None
