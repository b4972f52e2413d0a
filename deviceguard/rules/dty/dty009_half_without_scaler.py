"""DTY009: a float16 backward with no loss scaling."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import BackwardEnded, BackwardStarted, LossScaled
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import user_frame
from deviceguard.naming.objects import variable_of
from deviceguard.rules.dty.graphs import dtype_of, leaves_of, nodes_of
from deviceguard.rules.dty.scaling import Scaling
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch

    from deviceguard.context import Context

_ADVISE_AFTER = 3


class HalfWithoutScaler(Rule):
    """Gradients are computed in float16 and the loss was not scaled.

    What it does:
        On steps that are examined in full, looks whether the graph of an unscaled loss was computed in float16, and
        whether the gradients that come out are all zero although the loss is not.

    Why it hurts:
        float16 has no numbers below 6e-8. Small gradients become exactly zero: the curve flattens, with no error and no
        NaN to see.

    Example:
        net = torch.nn.Linear(4, 4).to("cuda")
        weight = net.weight.to(torch.float16)
        y = torch.randn(8, 4, device="cuda").to(torch.float16) @ weight.T
        (y.float() * 1e-9).sum().backward()

    Use instead:
        net = torch.nn.Linear(4, 4).to("cuda")
        weight = net.weight.to(torch.bfloat16)
        y = torch.randn(8, 4, device="cuda").to(torch.bfloat16) @ weight.T
        (y.float() * 1e-9).sum().backward()

    When it stays silent:
        With a gradient scaler, in bfloat16, and where the loss itself is zero. As long as gradients other than zero
        arrive, it is advice only.

    Repair:
        None is applied: the program is to use bfloat16 or a ``GradScaler``.

    References:
        https://github.com/engichang1467/Open-Rig3R/issues/35
        https://github.com/pytorch/pytorch/issues/40497
    """

    code: ClassVar[str] = "DTY009"
    name: ClassVar[str] = "half-without-scaler"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._scaling = Scaling()
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._seen = 0
        self._done = False
        self._passed_by: Any = None

    @on(LossScaled)
    def scaled(self, event: LossScaled) -> None:
        """A loss was scaled."""
        if self.context.steps.examined:
            self._scaling.loss_scaled(event.scaler, event.scaled)

    @on(BackwardStarted)
    def started(self, event: BackwardStarted) -> None:
        """A backward pass begins: does it go through float16?"""
        self._leaves = []
        self._passed_by = None
        if self._done or not self.context.steps.examined or not event.accumulates:
            return
        for root in event.tensors:
            self._passed_by = self._passed_by or self._scaling.scaler_passed_by(root)
            if self._scaling.scaler_of_loss(root) is None and _loss_is_not_zero(root):
                self._leaves += [weakref.ref(leaf) for leaf in _leaves_through_half(root)]

    @on(BackwardEnded)
    def ended(self, event: BackwardEnded) -> Iterator[Finding]:
        """The backward pass is over: did anything arrive?"""
        leaves = [leaf for reference in self._leaves if (leaf := reference()) is not None and leaf.grad is not None]
        self._leaves = []
        if not leaves:
            return
        self._seen += 1
        passed_by, self._passed_by = self._passed_by, None
        if passed_by is not None:
            self._done = True
            yield self._discarded(leaves, passed_by)
            return
        lost = all(not bool(leaf.grad.any()) for leaf in leaves)  # type: ignore[union-attr]
        if lost or self._seen == _ADVISE_AFTER:
            self._done = True
            yield self._finding(leaves, lost)

    def _discarded(self, leaves: Sequence[torch.Tensor], scaler: Any) -> Finding:
        subject = self.context.subjects.parameter(leaves[0])
        name = variable_of(scaler, user_frame()) or "scaler"
        return self.finding(
            f"The gradient of {subject.name} comes from the loss itself, and what {name}.scale() returned is thrown "
            f"away: float16 loses small gradients, and {name}.step() divides by a scale of "
            f"{float(scaler.get_scale()):g} that was never multiplied in.",
            f"{name}.scale(loss).backward()",
            [subject],
            key="discarded",
        )

    def _finding(self, leaves: Sequence[torch.Tensor], lost: bool) -> Finding:
        subject = self.context.subjects.parameter(leaves[0])
        others = f" and {len(leaves) - 1} more" if len(leaves) > 1 else ""
        what = "is exactly zero though the loss is not: it was too small for float16" if lost else "passes float16"
        return self.finding(
            f"The gradient of {subject.name}{others} {what}, and the loss was not scaled.",
            "compute in bfloat16, or scale the loss: scaler = torch.amp.GradScaler(); scaler.scale(loss).backward(); "
            "scaler.step(optimizer); scaler.update()",
            [subject],
            severity=None if lost else Severity.ADVICE,
        )


def _leaves_through_half(root: torch.Tensor) -> list[torch.Tensor]:
    """The float leaves of a graph in which something that is no leaf is float16."""
    import torch

    if root.grad_fn is None:
        return []
    half = any(dtype_of(node) == torch.float16 and getattr(node, "variable", None) is None for node in nodes_of(root))
    return leaves_of(root) if half else []


def _loss_is_not_zero(root: torch.Tensor) -> bool:
    """Asked of the device only where float16 is in play."""
    if root.grad_fn is None or not _leaves_through_half(root):
        return False
    return bool(root.detach().any())
