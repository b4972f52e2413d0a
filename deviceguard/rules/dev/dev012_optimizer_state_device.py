"""DEV012: optimizer state on another device than its parameter."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import same
from deviceguard.events import CallFailed, Event, OptimizerStateLoaded, OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import locals_of, user_site
from deviceguard.naming.phrases import came_from, site_of_call
from deviceguard.remedies import MoveState, Remedy
from deviceguard.rules.dev.blame import blame
from deviceguard.rules.dev.optimizer_state import entry_of, is_stock, tensors_of_state
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
        optimizer's kind: on the host, unless it is ``capturable`` or ``fused``. A refused line in the ``step`` of an
        optimizer of the program's own is explained as well.

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
        self._loaded: weakref.WeakKeyDictionary[Optimizer, Site | None] = weakref.WeakKeyDictionary()

    @on(OptimizerStateLoaded)
    def loaded(self, event: OptimizerStateLoaded) -> None:
        """A state dict was loaded: its tensors are where the parameters are now."""
        self._loaded[event.optimizer] = user_site()

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
        if event.optimizer is None:
            yield from self._in_own_step(event)
        if event.optimizer is None or event.problem != "device" or event.optimizer in self._said:
            return
        for parameter, key, tensor in _misplaced(event.optimizer):
            yield self._finding(event.optimizer, parameter, key, tensor, event)
            return

    def remedy(self, event: Event) -> Remedy | None:
        """The state is moved to its parameters before the step."""
        return MoveState(event.optimizer) if isinstance(event, OptimizerStepping) else None

    def _in_own_step(self, event: CallFailed) -> Iterator[Finding]:
        """A line of an optimizer that the user has written."""
        found = blame(event, self.context)
        if found is None or found.code != self.code or found.tensor is None:
            return
        optimizer: Any = locals_of(event.frame).get("self")
        entry = entry_of(found.tensor, optimizer)
        if entry is None or optimizer in self._said:
            return
        parameter, key = entry
        made = came_from(found.origin)
        if found.origin.factory is None:
            yield self._finding(optimizer, parameter, key, found.tensor, event)
        else:
            fix = f"{found.origin.factory}(..., device=p.device), or torch.zeros_like(p), p being the parameter"
            yield self._finding(optimizer, parameter, key, found.tensor, event, f".{made}", fix)

    def _finding(
        self,
        optimizer: Optimizer,
        parameter: torch.Tensor,
        key: str,
        tensor: torch.Tensor,
        event: CallFailed | None,
        why: str | None = None,
        fix: str = "",
    ) -> Finding:
        self._said.add(optimizer)
        subjects = self.context.subjects
        subject = subjects.parameter(parameter)
        name = f"optimizer.state[{subject.name}][{key!r}]"
        made_by = subjects.optimizer(optimizer, event.frame if event is not None else None)
        if why is None:
            why, fix = self._reason(optimizer, key, tensor)
        return self.finding(
            f"{key!r} of {made_by.name} ({type(optimizer).__name__}) for {subject.name} is on {tensor.device}, but the "
            f"parameter is on {parameter.device}{why}",
            fix,
            [subjects.tensor(name, tensor, "optimizer state"), subject, made_by],
            site=site_of_call(event) if event is not None else None,
            key=name,
        )

    def _reason(self, optimizer: Optimizer, key: str, tensor: torch.Tensor) -> tuple[str, str]:
        """Why a tensor of the state is where it is, and the edit."""
        if key == "step" and tensor.dim() == 0:
            return (
                ": a capturable or fused step takes its counter there only.",
                "leave 'step' where the optimizer made it when you load or move its state by hand",
            )
        if optimizer in self._loaded:
            site = self._loaded[optimizer]
            where = f" in line {site.line}" if site is not None else ""
            return (
                f": load_state_dict(){where} put it where the parameter was then, and the model was moved afterwards.",
                "move the model before optimizer.load_state_dict()",
            )
        return (
            ": the model was moved after the optimizer had made its state.",
            "move the model before the first step; or, after the move, build the optimizer again and load the old "
            "one's state_dict() into it",
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
