"""DEV012: optimizer state on another device than its parameter."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import same
from deviceguard.events import CallFailed, Event, OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.naming.phrases import site_of_call
from deviceguard.remedies import MoveState, Remedy
from deviceguard.rules.dev.optimizer_state import is_stock, tensors_of_state
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context
    from deviceguard.findings import Site


class OptimizerStateDevice(Rule):
    """The optimizer's state for a parameter is on another device than the parameter when ``step()`` runs.

    What it does:
        Before a step that is examined in full, compares each state tensor of PyTorch's own optimizers (``exp_avg``,
        ``momentum_buffer``, LBFGS's history, ...) with the parameter it belongs to. Step counters are judged by the
        optimizer's kind: on the host, unless it is ``capturable`` or ``fused``.

    Why it hurts:
        ``Module.to`` does not move optimizer state. On CUDA the step raises inside the optimizer; on XLA the state is
        uploaded at each step.

    Example:
        net = torch.nn.Linear(4, 1)
        opt = torch.optim.Adam(net.parameters())
        net(torch.randn(8, 4)).sum().backward()
        opt.step()
        net.to("cuda")
        net(torch.randn(8, 4, device="cuda")).sum().backward()
        opt.step()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.Adam(net.parameters())
        for _ in range(2):
            opt.zero_grad()
            net(torch.randn(8, 4, device="cuda")).sum().backward()
            opt.step()

    When it stays silent:
        For step counters on the host; for optimizers written by others, which may offload their state on purpose; for
        parameters that have no gradient, and for a model that left the device after training and is not stepped again.

    Repair:
        Each state tensor is moved to the device of its parameter; step counters stay where they are.

    References:
        https://github.com/pytorch/pytorch/issues/2830
        https://github.com/Lightning-AI/pytorch-lightning/issues/19225
        https://github.com/Aifred-Health/VulcanAI/issues/86
    """

    code: ClassVar[str] = "DEV012"
    name: ClassVar[str] = "optimizer-state-device"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._said: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @on(OptimizerStepping)
    def check(self, event: OptimizerStepping) -> Iterator[Finding]:
        """A step is about to run."""
        if not self.context.steps.examined or not is_stock(event.optimizer):
            return
        for parameter, key, tensor in _misplaced(event.optimizer):
            yield self._finding(event.optimizer, parameter, key, tensor, None)
            return

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A step that PyTorch refused."""
        if event.optimizer is None or event.problem != "device" or event.optimizer in self._said:
            return
        for parameter, key, tensor in _misplaced(event.optimizer):
            yield self._finding(event.optimizer, parameter, key, tensor, site_of_call(event))
            return

    def remedy(self, event: Event) -> Remedy | None:
        """The state is moved to its parameters before the step."""
        return MoveState(event.optimizer) if isinstance(event, OptimizerStepping) else None

    def _finding(
        self, optimizer: Optimizer, parameter: torch.Tensor, key: str, tensor: torch.Tensor, site: Site | None
    ) -> Finding:
        self._said.add(optimizer)
        subjects = self.context.subjects
        subject = subjects.parameter(parameter)
        name = f"optimizer.state[{subject.name}][{key!r}]"
        made_by = subjects.optimizer(optimizer)
        return self.finding(
            f"{key!r} of {made_by.name} ({type(optimizer).__name__}) for {subject.name} is on {tensor.device}, but the "
            f"parameter is on {parameter.device}: the model was moved after the optimizer had made its state.",
            "move the model before the first step; or, after the move, build the optimizer again and load the old "
            "one's state_dict() into it",
            [subjects.tensor(name, tensor, "optimizer state"), subject, made_by],
            site=site,
            key=name,
        )


def _misplaced(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if parameter.grad is None or not isinstance(state, Mapping):
                continue
            for key, tensor in tensors_of_state(state):
                if not same(tensor.device, parameter.device) and not _may_stay(key, tensor, group):
                    yield parameter, key, tensor


def _may_stay(key: str, tensor: torch.Tensor, group: Mapping[str, Any]) -> bool:
    """True for 0-dim host tensors, which PyTorch takes anywhere but in capturable and fused steps."""
    if tensor.dim() > 0:
        return False
    return not (key == "step" and (group.get("capturable") or group.get("fused")))
