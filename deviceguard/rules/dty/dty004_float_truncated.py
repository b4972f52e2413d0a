"""DTY004: floating values written into an integer tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import is_host, is_simulated
from deviceguard.events import CallFailed, IntegersWritten
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import libraries_between, site_of, user_frame
from deviceguard.naming.objects import variable_of
from deviceguard.naming.phrases import how_it_came, site_of_call
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch

    from deviceguard.context import Context

_SHARE_LOST = 0.05
_SAMPLE = 4096

_AVERAGES = "swa_utils.py"


class FloatTruncated(Rule):
    """Floating values are written into an integer tensor, and their fractions are dropped without a word.

    What it does:
        Looks at writes into integer tensors (``t[i] = value``, ``copy_``, ``fill_``, ``masked_fill_``, ``scatter_``,
        ``full_like``). Speaks when a good part of the value is lost.

    Why it hurts:
        ``torch.tensor([0, 0, 0])`` is an integer tensor. Soft labels, weights and probabilities written into one become
        0, and the run goes on with them.

    Example:
        targets = torch.tensor([[0, 1, 0], [1, 0, 0]], device="cuda")
        targets[targets == 1] = 0.9

    Use instead:
        targets = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], device="cuda")
        targets[targets == 1] = 0.9

    When it stays silent:
        For whole numbers; for values so large that the fraction hardly matters (images written as bytes); for casts
        that are written out (``.long()``, ``.to(torch.uint8)``); for boolean tensors.

    Repair:
        None is applied: the tensor is to be made with a floating dtype.

    References:
        https://github.com/pytorch/pytorch/issues/30294
        https://discuss.pytorch.org/t/assigning-a-float-to-an-integer-tensor/83124
    """

    code: ClassVar[str] = "DTY004"
    name: ClassVar[str] = "float-truncated"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._looked_at: set[tuple[str, int]] = set()

    @on(IntegersWritten)
    def written(self, event: IntegersWritten) -> Iterator[Finding]:
        """A write that will truncate."""
        frame = user_frame()
        if frame is None or not self._may_look(event.value, (frame.f_code.co_filename, frame.f_lineno)):
            return
        if any(file.endswith(_AVERAGES) for _, file in libraries_between(sys._getframe(), frame)):
            return  # the counters of normalisation layers, rounded among the averaged buffers
        share = _share_lost(event.value)
        if share < _SHARE_LOST:
            return
        name = variable_of(event.target, frame) or variable_of(event.target._base, frame) or "the tensor"
        given = repr(event.value) if isinstance(event.value, float) else variable_of(event.value, frame)
        yield self.finding(
            f"{name} is {short(event.target.dtype)}, and {given or 'a floating tensor'} is written into it by "
            f"{event.call}: the fraction is dropped ({share:.0%} of the value).",
            f"make {name} with dtype=torch.float32, or round on purpose before writing",
            [self.context.subjects.tensor(name, event.target)],
            site=site_of(frame),
            key=name,
        )

    def _may_look(self, value: torch.Tensor | float, place: tuple[str, int]) -> bool:
        """Reading a device tensor makes the host wait, so it is done once for each line."""
        if isinstance(value, float) or is_host(value.device) or is_simulated(value.device):
            return True
        if place in self._looked_at or not self.context.steps.examined:
            return False
        self._looked_at.add(place)
        return True

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A write that PyTorch refused."""
        if event.problem != "truncation":
            return
        integers = [operand for operand in event.operands if not operand.tensor.dtype.is_floating_point]
        for operand in integers[:1]:
            name = operand.expression or operand.role
            yield self.finding(
                f"{name} is {short(operand.tensor.dtype)}, and {event.callee} would write floating values into it."
                f"{how_it_came(operand, event)}",
                f"make {name} with dtype=torch.float32, or cast the value on purpose",
                [self.context.subjects.tensor(name, operand.tensor)],
                site=site_of_call(event),
                key=name,
            )


def _share_lost(value: Any) -> float:
    """How much of the value's size lies behind the point; 0 to 1."""
    if isinstance(value, float):
        return abs(value - int(value)) / abs(value) if value and abs(value) < 1e15 else 0.0
    flat = value.detach().reshape(-1)[:_SAMPLE].double()
    flat = flat[flat.isfinite()]
    total = float(flat.abs().sum())
    return float((flat - flat.trunc()).abs().sum()) / total if total > 0 else 0.0
