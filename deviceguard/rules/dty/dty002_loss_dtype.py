"""DTY002: the operands of a loss in different floating dtypes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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

_WANTS_INDICES = re.compile(r"type Long|dtype to be Long")

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
        wants_indices = _WANTS_INDICES.search(str(event.error)) is not None
        for operand in _suspects(operands, given, wants_indices):
            if operand.tensor.dtype != home or wants_indices:
                name = operand.expression or operand.role
                yield self.finding(
                    f"{name} ({operand.role}) is {short(operand.tensor.dtype)}, but {event.callee} "
                    + ("takes class indices" if wants_indices else f"has an input of {short(home)} and takes no mix")
                    + f".{how_it_came(operand, event)}",
                    f"{name}.long()" if wants_indices else f"cast it where it is made: {name}.to(torch.{short(home)})",
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


def _suspects(operands: Sequence[Operand], given: Operand, wants_indices: bool) -> list[Operand]:
    """The operands that may be wrong, the likeliest first: floating ones, then integer ones."""
    others = [operand for operand in operands if operand is not given]
    floating = [operand for operand in others if operand.tensor.is_floating_point()]
    if wants_indices:
        return [operand for operand in floating if operand.role == "target"]
    mixed = [operand for operand in floating if operand.tensor.dtype != given.tensor.dtype]
    return mixed or [operand for operand in others if not operand.tensor.is_floating_point()]
