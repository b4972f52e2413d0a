"""DTY007: a gradient scaler together with bfloat16."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import AutocastEntered, ScalerStepping, ScalerUpdated
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import user_frame
from deviceguard.naming.objects import variable_of
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context


class ScalerWithBfloat16(Rule):
    """A gradient scaler is switched on while the run computes in bfloat16.

    What it does:
        When a scaler steps, looks which dtype autocast used since its last update, and what the gradients are.

    Why it hurts:
        bfloat16 has the range of float32, so there is nothing to scale. The scaler costs a pass over all gradients and
        a wait for the device at each step, skips steps on its way, and refuses bfloat16 gradients on CUDA.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(torch.randn(8, 4, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(torch.randn(8, 4, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    When it stays silent:
        For scalers that are switched off and for float16. Where only autocast is in bfloat16 the run is right and
        merely slower than it could be, which is advice; bfloat16 gradients are a warning.

    Repair:
        None is applied: the scaler is to be made with ``enabled=False``.

    References:
        https://github.com/huggingface/accelerate/pull/1036
        https://github.com/huggingface/transformers/pull/21428
        https://github.com/decoderesearch/SAELens/pull/723
        https://github.com/pytorch/pytorch/issues/127176
    """

    code: ClassVar[str] = "DTY007"
    name: ClassVar[str] = "scaler-with-bfloat16"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._used: set[str] = set()
        self._said: weakref.WeakSet[Any] = weakref.WeakSet()

    @on(AutocastEntered)
    def entered(self, event: AutocastEntered) -> None:
        """An autocast region begins."""
        if event.enabled:
            self._used.add(short(event.dtype))

    @on(ScalerUpdated)
    def updated(self, event: ScalerUpdated) -> None:
        """The scaler's step is over."""
        self._used.clear()

    @on(ScalerStepping)
    def stepping(self, event: ScalerStepping) -> Iterator[Finding]:
        """The scaler is about to step."""
        if event.scaler in self._said or not self.context.steps.examined:
            return
        narrow = _narrow_gradient(event.optimizer)
        if narrow is None and self._used != {"bfloat16"}:
            return
        self._said.add(event.scaler)
        name = variable_of(event.scaler, user_frame()) or "the GradScaler"
        subjects = [Subject(name, "gradient scaler")]
        if narrow is not None:
            subjects.append(self.context.subjects.parameter(narrow))
        reason = (
            f"the gradients of {subjects[1].name} are bfloat16" if narrow is not None else "autocast is in bfloat16"
        )
        yield self.finding(
            f"{name} is switched on while {reason}: bfloat16 has the range of float32, so the scaler only costs time "
            "and skips steps.",
            f"{name} = torch.amp.GradScaler(enabled=False), or leave it out",
            subjects,
            severity=None if narrow is not None else Severity.ADVICE,
        )


def _narrow_gradient(optimizer: Optimizer) -> torch.Tensor | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and short(parameter.grad.dtype) == "bfloat16":
                return parameter
    return None
