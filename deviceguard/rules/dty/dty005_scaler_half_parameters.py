"""DTY005: a gradient scaler over float16 parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import GradientsUnscaling, ScalerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context


class ScalerHalfParameters(Rule):
    """A gradient scaler is used with an optimizer whose parameters are float16.

    What it does:
        Before a scaler unscales or steps, looks at the dtype of the parameters that have gradients.

    Why it hurts:
        PyTorch refuses with "Attempting to unscale FP16 gradients" and names no parameter. Mixed precision wants
        float32 parameters, which autocast casts where it helps; float16 ones come from ``model.half()`` or from a
        checkpoint.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda").half()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        loss = net(torch.randn(8, 4, device="cuda").half()).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(torch.randn(8, 4, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    When it stays silent:
        For float32 parameters under autocast, for frozen float16 parts that have no gradient, and for scalers that are
        switched off.

    Repair:
        None is applied: the parameters are to be kept in float32.

    References:
        https://github.com/pytorch/pytorch/issues/74739
        https://github.com/haotian-liu/LLaVA/issues/363
        https://github.com/yk7333/d3po/issues/6
    """

    code: ClassVar[str] = "DTY005"
    name: ClassVar[str] = "scaler-half-parameters"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._said: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @on(GradientsUnscaling, ScalerStepping)
    def check(self, event: GradientsUnscaling | ScalerStepping) -> Iterator[Finding]:
        """A scaler is about to work on an optimizer's gradients."""
        if event.optimizer in self._said or not self.context.steps.examined:
            return
        half = [p for p in _with_gradients(event.optimizer) if short(p.grad.dtype) == "float16"]  # type: ignore[union-attr]
        if not half:
            return
        self._said.add(event.optimizer)
        subject = self.context.subjects.parameter(half[0])
        others = f" and {len(half) - 1} more" if len(half) > 1 else ""
        optimizer = self.context.subjects.optimizer(event.optimizer)
        yield self.finding(
            f"{subject.name}{others} of {optimizer.name} are float16: a GradScaler unscales float32 gradients only, "
            "and float16 weights lose small updates.",
            "keep what trains in float32 (model.float()) and compute under torch.autocast(..., dtype=torch.float16)",
            [subject, optimizer],
        )


def _with_gradients(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)
