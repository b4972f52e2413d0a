"""DTY006: gradients clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import (
    BackwardStarted,
    GradientsCleared,
    GradientsClipped,
    GradientsUnscaling,
    LossScaled,
    OptimizerStepped,
)
from deviceguard.findings import Finding, Severity
from deviceguard.rules.dty.scaling import Scaling
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context


class ClipBeforeUnscale(Rule):
    """Gradients are clipped between ``scaler.scale(loss).backward()`` and ``scaler.unscale_(optimizer)``.

    What it does:
        Follows the order of mixed precision for each scaler and optimizer: scale, backward, unscale, clip, step,
        update. Speaks when a clipping function is given gradients that are still scaled.

    Why it hurts:
        The gradients are tens of thousands of times too large then. Clipping cuts them to the limit, unscaling divides
        what is left by the scale, and next to nothing remains of the update.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cuda")
        loss = net(torch.randn(8, 4, device="cuda")).pow(2).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cuda")
        loss = net(torch.randn(8, 4, device="cuda")).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    When it stays silent:
        After ``unscale_``, for optimizers whose loss was not scaled, for scalers that are switched off, and while the
        scale is 1.

    Repair:
        The gradients of the optimizer are unscaled before they are clipped.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/issues/9330
        https://github.com/milesial/Pytorch-UNet/pull/470
        https://github.com/pytorch/examples/issues/1196
    """

    code: ClassVar[str] = "DTY006"
    name: ClassVar[str] = "clip-before-unscale"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._scaling = Scaling()

    @on(LossScaled)
    def scaled(self, event: LossScaled) -> None:
        """A loss was scaled."""
        if self.context.steps.examined:
            self._scaling.loss_scaled(event.scaler, event.scaled)

    @on(BackwardStarted)
    def backward(self, event: BackwardStarted) -> None:
        """A backward pass begins."""
        if self.context.steps.examined and event.accumulates:
            self._scaling.backward(event.tensors)

    @on(GradientsUnscaling, OptimizerStepped)
    def unscaled(self, event: GradientsUnscaling | OptimizerStepped) -> None:
        """The gradients of an optimizer are unscaled, or used up."""
        self._scaling.forget(_parameters(event.optimizer))

    @on(GradientsCleared)
    def cleared(self, event: GradientsCleared) -> None:
        """Gradients were cleared."""
        owner: Any = event.owner
        self._scaling.forget(_parameters(owner) if hasattr(owner, "param_groups") else owner.parameters())

    @on(GradientsClipped)
    def clipped(self, event: GradientsClipped) -> Iterator[Finding]:
        """Gradients are about to be clipped."""
        for parameter in event.parameters:
            scaler = self._scaling.scaler_of(parameter)
            if scaler is None:
                continue
            scale = float(scaler.get_scale())
            if scale != 1.0:
                yield self._finding(event, parameter, scale)
            return

    def _finding(self, event: GradientsClipped, parameter: torch.Tensor, scale: float) -> Finding:
        subject = self.context.subjects.parameter(parameter)
        optimizer = next((o for o, _ in self.context.ledger.optimizers() if _holds(o, parameter)), None)
        name = self.context.subjects.optimizer(optimizer).name if optimizer is not None else "optimizer"
        what = "measures" if event.limit == float("inf") else "clips"
        return self.finding(
            f"{event.function} {what} the gradients of {subject.name} while they are multiplied by the loss scale "
            f"({scale:g}): {name} was not unscaled yet, and the limit cuts nearly all of them away.",
            f"scaler.unscale_({name}) before {event.function}",
            [subject],
        )


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _holds(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    return any(candidate is parameter for candidate in _parameters(optimizer))
