"""DEV013: an optimizer's step counter on the accelerator, read by the host at each step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import backend_of, is_accelerator
from deviceguard.events import OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.rules.dev.optimizer_state import is_stock
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context


class StepCounterDevice(Rule):
    """The ``step`` counter in the optimizer's state is on the accelerator, and the optimizer reads it at each step.

    What it does:
        Before a step that is examined in full, looks where PyTorch's own optimizers keep their ``step``. Unless a group
        is ``capturable`` or ``fused`` it belongs on the host.

    Why it hurts:
        An optimizer that is neither reads the counter with ``.item()`` for each parameter: as many waits for the device
        per step as there are parameters. It comes from moving all tensors of the state by hand after loading it.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.Adam(net.parameters())
        for _ in range(2):
            opt.zero_grad()
            net(torch.randn(8, 4, device="cuda")).sum().backward()
            opt.step()
            for state in opt.state.values():
                for key, value in state.items():
                    state[key] = value.to("cuda")

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.Adam(net.parameters())
        for _ in range(2):
            opt.zero_grad()
            net(torch.randn(8, 4, device="cuda")).sum().backward()
            opt.step()
            for state in opt.state.values():
                for key, value in state.items():
                    state[key] = value if key == "step" else value.to("cuda")

    When it stays silent:
        For ``capturable`` and ``fused`` optimizers, for counters on the host, for optimizers written by others, and
        where operations are traced and nothing is read.

    Repair:
        The counter is moved to the host.

    References:
        https://github.com/pytorch/pytorch/issues/74424
        https://github.com/pytorch/pytorch/pull/167579
    """

    code: ClassVar[str] = "DEV013"
    name: ClassVar[str] = "step-counter-device"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._said: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @on(OptimizerStepping)
    def check(self, event: OptimizerStepping) -> Iterator[Finding]:
        """A step is about to run."""
        optimizer = event.optimizer
        if not self.context.steps.examined or not is_stock(optimizer) or optimizer in self._said:
            return
        misplaced = list(_counters_on_device(optimizer))
        if not misplaced:
            return
        self._said.add(optimizer)
        parameter, counter = misplaced[0]
        made_by = self.context.subjects.optimizer(optimizer)
        subject = self.context.subjects.parameter(parameter)
        name = f"optimizer.state[{subject.name}]['step']"
        yield self.finding(
            f"'step' of {made_by.name} ({type(optimizer).__name__}) for {subject.name} is on {counter.device}, and the "
            f"optimizer is neither capturable nor fused: it reads {len(misplaced)} such counter(s) from the device at "
            "each step.",
            "leave 'step' on the host when you move optimizer state, or make the optimizer with fused=True",
            [self.context.subjects.tensor(name, counter, "optimizer state"), subject, made_by],
        )


_ON_HOST_BY_DEFAULT = frozenset({"Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""The optimizers that keep ``step`` on the host unless they are told otherwise (ASGD does not)."""


def _counters_on_device(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    import torch

    if not any(cls.__name__ in _ON_HOST_BY_DEFAULT for cls in type(optimizer).__mro__):
        return
    for group in optimizer.param_groups:
        if group.get("capturable") or group.get("fused") or "capturable" not in group:
            continue
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            counter = state.get("step") if isinstance(state, Mapping) else None
            if isinstance(counter, torch.Tensor) and _is_read(counter):
                yield parameter, counter


def _is_read(counter: torch.Tensor) -> bool:
    backend = backend_of(counter.device)
    return is_accelerator(counter.device) and backend is not None and not backend.traced
