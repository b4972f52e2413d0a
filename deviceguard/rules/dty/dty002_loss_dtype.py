"""DTY002: the operands of a loss in different floating dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import CallFailed, Event, LossComputed, Operand
from deviceguard.findings import Finding, Severity, Site
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import user_frame, user_site
from deviceguard.naming.objects import joined, variable_of
from deviceguard.naming.phrases import how_it_came, site_of_call
from deviceguard.remedies import CastOperands, Remedy
from deviceguard.rules.dty.dtypes import autocast_dtype, short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch

    from deviceguard.context import Context


class LossDtype(Rule):
    """The input, target or weights of a loss have different floating dtypes.

    What it does:
        Compares the floating operands of losses. Many losses promote silently, so that a float64 target makes the loss
        and its backward float64; others refuse, some only in the backward pass, where no name is left.

    Why it hurts:
        float64 arithmetic is many times slower on an accelerator. A refusal in the backward pass points at
        ``loss.backward()``, not at the target.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        y = torch.zeros(8, 1, dtype=torch.float64, device="cuda")
        loss = torch.nn.functional.mse_loss(net(torch.randn(8, 4, device="cuda")), y)

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        y = torch.zeros(8, 1, device="cuda")
        loss = torch.nn.functional.mse_loss(net(torch.randn(8, 4, device="cuda")), y)

    When it stays silent:
        For integer targets, for what autocast casts, and when all floating operands share a dtype. A half-precision
        prediction against a float32 target that the loss accepts is advice only: the loss is computed in float32.

    Repair:
        The target or weight is cast to the dtype of the loss's input.

    References:
        https://github.com/pytorch/pytorch/issues/2138
        https://github.com/OUCMachineLearning/OUCML/issues/24
    """

    code: ClassVar[str] = "DTY002"
    name: ClassVar[str] = "loss-dtype"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._mixed: tuple[str, str, Site | None] | None = None

    @on(LossComputed)
    def watch(self, event: LossComputed) -> Iterator[Finding]:
        """A loss that accepted the mix."""
        floating = {role: tensor for role, tensor in event.operands.items() if tensor.is_floating_point()}
        if len({tensor.dtype for tensor in floating.values()}) < 2:
            self._mixed = None
            return
        role, odd = _odd_one(floating)
        wide = short(odd.dtype) == "float64"
        if not wide and autocast_dtype(odd.device.type) is not None:
            return
        given = floating.get("input", next(iter(floating.values())))
        name = self._name(odd, role)
        self._mixed = (name, short(given.dtype), user_site())
        consequence = "the loss and its gradient are computed in float64" if wide else "the mix is promoted"
        yield self.finding(
            f"{name} ({role} of {event.function}) is {short(odd.dtype)}, but the input is {short(given.dtype)}: "
            f"{consequence}.",
            f"cast it where it is made: {name}.to(torch.{short(given.dtype)})",
            [self.context.subjects.tensor(name, odd, "target" if role == "target" else "tensor")],
            severity=None if wide else Severity.ADVICE,
            key=f"{role} {short(odd.dtype)}",
        )

    def _name(self, tensor: torch.Tensor, role: str) -> str:
        frame = user_frame()
        text = running_call(frame) if frame is not None else None
        position = {"input": 0, "target": 1}.get(role, -1)
        return variable_of(tensor, frame) or (text.argument(position, role) if text else None) or role

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A loss that PyTorch refused, or its backward."""
        if event.problem != "dtype":
            return
        if event.kind == "backward" and self._mixed is not None:
            name, wanted, site = self._mixed
            yield self.finding(
                f"{name} has another dtype than the input of the loss ({wanted}), and its backward refuses the mix.",
                f"cast it where it is made: {name}.to(torch.{wanted})",
                site=site,
                key="backward",
            )
        elif event.kind == "loss":
            yield from self._refused(event)

    def remedy(self, event: Event) -> Remedy | None:
        """A floating target or weight is cast to the dtype of the loss's input."""
        if not isinstance(event, CallFailed) or event.kind != "loss":
            return None
        given = next((operand.tensor for operand in event.operands if operand.role == "input"), None)
        return CastOperands(given.dtype) if given is not None and given.is_floating_point() else None

    def _refused(self, event: CallFailed) -> Iterator[Finding]:
        operands = [*event.operands, *self._buffers(event)]
        given = next((o for o in operands if o.role == "input"), operands[0] if operands else None)
        if given is None:
            return
        home = given.tensor.dtype
        for operand in operands:
            if operand is not given and operand.tensor.dtype != home:
                name = operand.expression or operand.role
                yield self.finding(
                    f"{name} ({operand.role}) is {short(operand.tensor.dtype)}, but the input of {event.callee} is "
                    f"{short(home)}, and it takes no mix.{how_it_came(operand, event)}",
                    _fix(name, operand, home),
                    [self.context.subjects.tensor(name, operand.tensor, operand.role)],
                    site=site_of_call(event),
                    key=name,
                )
                return

    def _buffers(self, event: CallFailed) -> Iterator[Operand]:
        if event.module is not None:
            name = self.context.subjects.model_name(event.module, event.frame)
            for attribute, tensor in event.module._buffers.items():
                if tensor is not None:
                    yield Operand(attribute, joined(name, attribute), tensor)


def _odd_one(floating: dict[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
    """The float64 operand if there is one, else the one that differs from the input."""
    for role, tensor in floating.items():
        if short(tensor.dtype) == "float64":
            return role, tensor
    given = next(iter(floating.values()))
    return next((role, tensor) for role, tensor in floating.items() if tensor.dtype != given.dtype)


def _fix(name: str, operand: Operand, home: torch.dtype) -> str:
    if operand.role == "target" and not operand.tensor.dtype.is_floating_point:
        return f"{name}.to(torch.{short(home)}) where it is made"
    if operand.role == "target" and operand.tensor.dtype.is_floating_point and operand.tensor.dim() == 1:
        return f"class indices are integers: {name}.long(); else cast it: {name}.to(torch.{short(home)})"
    return f"cast it where it is made: {name}.to(torch.{short(home)})"
