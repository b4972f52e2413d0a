"""DTY006: gradients clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import (
    BackwardEnded,
    BackwardStarted,
    CallFailed,
    GradientHandled,
    GradientsCleared,
    GradientsClipped,
    GradientsUnscaling,
    LossScaled,
    OptimizerStepped,
    OptimizerStepping,
    ScalerStepping,
    ScalerUpdated,
)
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import is_user_code, locals_of, outward, spot_of, user_frame
from deviceguard.naming.phrases import site_of_call
from deviceguard.rules.dty.scaling import Scaling
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context
    from deviceguard.findings import Site

_LARGE = 1024.0
"""From this scale on, a limit tells by its size whether the scale is in it."""
_SMALLEST_LIMIT = 0.01
_ASKS_FOR_SCALE = "get_scale"


class ClipBeforeUnscale(Rule):
    """Gradients are clipped, measured or used while they are still multiplied by the loss scale.

    What it does:
        Follows the order of mixed precision for each scaler and optimizer: scale, backward, unscale, clip, step,
        update. Speaks when a clipping function, or a clamp or norm written by hand, is given gradients that are still
        scaled, and when an optimizer steps on them without the scaler. Explains what a scaler refuses when it is
        called out of order: unscaled twice, stepped twice, never updated.

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
        After ``unscale_``, for gradients that the program has changed since their backward (it may have unscaled them
        itself), for limits that contain the scale, for optimizers whose loss was not scaled, for scalers that are
        switched off, and while the scale is 1. A norm that is only read is advice, and nothing where the program asks
        for the scale.

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
        self._latest: weakref.ref[Optimizer] | None = None
        self._unscaled_at: weakref.WeakKeyDictionary[Optimizer, Site | None] = weakref.WeakKeyDictionary()
        self._stepped_at: weakref.WeakKeyDictionary[Optimizer, Site | None] = weakref.WeakKeyDictionary()

    @on(LossScaled)
    def scaled(self, event: LossScaled) -> None:
        """A loss was scaled."""
        if self.context.steps.examined:
            self._scaling.loss_scaled(event.scaler, event.scaled)

    @on(BackwardStarted)
    def backward(self, event: BackwardStarted) -> None:
        """A backward pass begins."""
        self._latest = None
        if self.context.steps.examined and event.accumulates:
            self._scaling.backward(event.tensors)

    @on(BackwardEnded)
    def arrived(self, event: BackwardEnded) -> None:
        """A backward pass is over."""
        self._scaling.arrived()

    @on(GradientsUnscaling)
    def unscaled(self, event: GradientsUnscaling) -> None:
        """The gradients of an optimizer are unscaled."""
        self._scaling.forget(_parameters(event.optimizer))
        self._latest = weakref.ref(event.optimizer)
        self._unscaled_at.setdefault(event.optimizer, spot_of(user_frame()))

    @on(ScalerStepping)
    def scaler_stepping(self, event: ScalerStepping) -> None:
        """The scaler steps an optimizer, and unscales first where nobody did."""
        self._scaling.forget(_parameters(event.optimizer))
        self._stepped_at.setdefault(event.optimizer, spot_of(user_frame()))

    @on(ScalerUpdated)
    def updated(self, event: ScalerUpdated) -> None:
        """A new round begins."""
        self._unscaled_at.clear()
        self._stepped_at.clear()

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """The gradients of an optimizer are used up."""
        self._scaling.forget(_parameters(event.optimizer))

    @on(GradientsCleared)
    def cleared(self, event: GradientsCleared) -> None:
        """Gradients were cleared."""
        owner: Any = event.owner
        self._scaling.forget(_parameters(owner) if hasattr(owner, "param_groups") else owner.parameters())

    def _follow_repair(self) -> None:
        """An optimizer may have been given other parameters just before they were unscaled."""
        optimizer = self._latest() if self._latest is not None else None
        self._latest = None
        if optimizer is not None:
            self._scaling.forget(_parameters(optimizer))

    @on(GradientsClipped)
    def clipped(self, event: GradientsClipped) -> Iterator[Finding]:
        """Gradients are about to be clipped."""
        self._follow_repair()
        for parameter in event.parameters:
            scaler = self._scaling.scaler_of(parameter)
            if scaler is not None:
                yield from self._handled(event.function, parameter, scaler, event.limit)
                return

    @on(GradientHandled)
    def by_hand(self, event: GradientHandled) -> Iterator[Finding]:
        """Something that may be a gradient is about to be clamped or measured."""
        self._follow_repair()
        parameter = self._scaling.parameter_of(event.tensor)
        scaler = self._scaling.scaler_of(parameter) if parameter is not None else None
        if parameter is None or scaler is None or _is_inside_clipping():
            return
        yield from self._handled(event.call, parameter, scaler, event.limit)

    def _handled(self, call: str, parameter: torch.Tensor, scaler: Any, limit: float) -> Iterator[Finding]:
        scale = float(scaler.get_scale())
        frame = user_frame()
        if scale == 1.0 or _is_accounted_for(limit, scale, frame):
            return
        subject = self.context.subjects.parameter(parameter)
        name = self._stepped_by(parameter)
        only_reads = limit == float("inf")
        what = "measures" if only_reads else "clips"
        harm = "what it gives is as many times too large" if only_reads else "the limit cuts nearly all of them away"
        yield self.finding(
            f"{call} {what} the gradients of {subject.name} while they are multiplied by the loss scale ({scale:g}): "
            f"{name} was not unscaled yet, and {harm}.",
            f"scaler.unscale_({name}) before {call}",
            [subject],
            severity=Severity.ADVICE if only_reads else None,
        )

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """A step is about to run: on gradients that nobody has unscaled?"""
        self._follow_repair()
        for parameter in _parameters(event.optimizer):
            scaler = self._scaling.scaler_of(parameter)
            if scaler is None:
                continue
            scale = float(scaler.get_scale())
            if scale == 1.0 or _asks_for_scale(user_frame()):
                return
            subject = self.context.subjects.parameter(parameter)
            optimizer = self.context.subjects.optimizer(event.optimizer)
            yield self.finding(
                f"{optimizer.name}.step() uses gradients that are still multiplied by the loss scale ({scale:g}), "
                f"{subject.name}'s among them: the loss was scaled, and the scaler does not make this step.",
                f"scaler.step({optimizer.name}) in place of {optimizer.name}.step(), then scaler.update()",
                [subject, optimizer],
            )
            return

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A scaler refused to be called out of order."""
        if event.problem != "scaler-order":
            return
        optimizer = _optimizer_in(event.traceback)
        subject = self.context.subjects.optimizer(optimizer, event.frame) if optimizer is not None else None
        name = subject.name if subject is not None else "the optimizer"
        why, fix = self._refusal(str(event.error), optimizer, name)
        yield self.finding(
            f"{event.callee} is called out of order: {why}",
            fix,
            [subject] if subject is not None else [],
            site=site_of_call(event),
        )

    def _refusal(self, text: str, optimizer: Optimizer | None, name: str) -> tuple[str, str]:
        """What was done before, and the edit."""
        unscaled = _in_line(self._unscaled_at.get(optimizer)) if optimizer is not None else ""
        stepped = _in_line(self._stepped_at.get(optimizer)) if optimizer is not None else ""
        if "_scale is None" in text:
            return (
                "no loss was scaled before it.",
                "scaler.scale(loss).backward() in place of loss.backward()",
            )
        if "No inf checks" in text:
            return (
                f"no parameter of {name} has a gradient, so there was nothing to unscale.",
                f"let the backward pass reach the parameters of {name} before the scaler steps it, or leave it out",
            )
        if "after step" in text:
            return (
                f"the scaler has stepped {name} already{stepped}, and unscaled it for that.",
                f"scaler.unscale_({name}) after the backward pass and before scaler.step({name})",
            )
        if text.startswith("unscale_"):
            return (
                f"{name} was unscaled already{unscaled}, and scaler.update() has not run since.",
                f"scaler.unscale_({name}) once per step, after the last backward pass of an accumulation, and "
                "scaler.update() at the end of the step",
            )
        return (
            f"the scaler has stepped {name} already{stepped}, and scaler.update() has not run since.",
            f"scaler.update() once at the end of each step, after scaler.step({name})",
        )

    def _stepped_by(self, parameter: torch.Tensor) -> str:
        optimizer = next((o for o, _ in self.context.ledger.optimizers() if _holds(o, parameter)), None)
        return self.context.subjects.optimizer(optimizer).name if optimizer is not None else "optimizer"


def _is_accounted_for(limit: float, scale: float, frame: FrameType | None) -> bool:
    """True where the program knows of the scale: by the size of its limit, or else by asking the scaler for it."""
    if limit < float("inf") and scale >= _LARGE:
        return limit >= scale * _SMALLEST_LIMIT
    return _asks_for_scale(frame)


def _asks_for_scale(frame: FrameType | None) -> bool:
    """True where one of the user's functions that are running asks a scaler for its scale."""
    return any(_ASKS_FOR_SCALE in each.f_code.co_names for each in outward(frame) if is_user_code(each))


def _is_inside_clipping() -> bool:
    """True for the norms that the clipping functions of libraries compute."""
    for frame in outward(sys._getframe(1)):
        if is_user_code(frame):
            return False
        if frame.f_code.co_name.startswith("clip_grad_"):
            return True
    return False


def _in_line(site: Site | None) -> str:
    return f" in line {site.line}" if site is not None else ""


def _optimizer_in(traceback: TracebackType | None) -> Optimizer | None:
    """The optimizer a scaler was called for, from the innermost frame, which is the scaler's."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    found = locals_of(traceback.tb_frame).get("optimizer") if traceback is not None else None
    return found if hasattr(found, "param_groups") else None


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _holds(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    return any(candidate is parameter for candidate in _parameters(optimizer))
