"""OPT016: ``step()`` runs with gradients and a learning rate, and no parameter changes."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import OptimizerStepped, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.tensors import parameters_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import made_at
from deviceguard.rules.opt.movement import Before, compare, look
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

ENOUGH = 8
"""Judged steps, all without any change, after which it is reported at once."""

ENOUGH_AT_END = 3
"""The same at the end of a run."""


@dataclasses.dataclass(slots=True)
class _Still:
    """An optimizer whose steps have changed nothing so far.

    Attributes:
        subject: its name, as text for the end of the run.
        before: elements before the running step.
        steps: judged steps.
        written: steps that wrote to parameters, though nothing changed.
        low: the dtype of its parameters where that is a low-precision one, else empty.
        site: the line of the last step.
        over: True once it changed something, or was reported.
    """

    subject: Subject
    low: str
    before: Before | None = None
    steps: int = 0
    written: int = 0
    site: Site | None = None
    over: bool = False


class StepWithoutChange(Rule):
    """``step()`` runs with gradients that are not zero and a learning rate that is not zero, and nothing changes.

    What it does:
        On steps that are examined it reads a few elements of the parameters with gradients before and after the step.
        When not one of them changes in step after step, it says so, and why: lost to rounding, or never written.

    Why it hurts:
        The model does not train at all.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda", torch.bfloat16)
        torch.nn.init.ones_(net.weight)
        torch.nn.init.ones_(net.bias)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda", dtype=torch.bfloat16)).sum().backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    When it stays silent:
        When a single parameter changes, for learning rates of zero (warm-up), steps that GradScaler skips, and
        optimizers that update only every few steps.

    Repair:
        None by itself.

    References:
        https://github.com/kyegomez/SingLoRA/issues/6
        https://github.com/pytorch/pytorch/issues/100701
    """

    code: ClassVar[str] = "OPT016"
    name: ClassVar[str] = "step-without-change"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._still: weakref.WeakKeyDictionary[Optimizer, _Still] = weakref.WeakKeyDictionary()
        self._kept: list[_Still] = []

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> None:
        """Read before the step."""
        if not self.context.steps.examined or event.with_closure:
            return
        known = self._still.get(event.optimizer)
        if known is None:
            known = _Still(self.context.subjects.optimizer(event.optimizer), _low_precision(event.optimizer))
            self._still[event.optimizer] = known
            self._kept = [*self._kept[-100:], known]
        known.before = None if known.over else look(event.optimizer)

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """Read after it."""
        known = self._still.get(event.optimizer)
        if known is None or known.over or known.before is None:
            return
        movement, known.before = compare(event.optimizer, known.before), None
        if movement is None:
            return
        if movement.moved:
            known.over = True
            return
        known.steps += 1
        known.written += movement.written
        known.site = user_site()
        if known.steps >= ENOUGH:
            known.over = True
            yield self._finding(known)

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Short runs."""
        for known in self._kept:
            if not known.over and known.steps >= ENOUGH_AT_END:
                yield self._finding(known)

    def _finding(self, known: _Still) -> Finding:
        name = known.subject.name
        if known.written and known.low:
            why = f"The updates are smaller than {known.low} can resolve and are rounded away (see DTY010)."
            fix = "keep the weights in float32 (use autocast for the arithmetic), or raise the learning rate"
        elif known.written:
            why = "Something is written, and the values stay: the updates are rounded away, or undone by a hook."
            fix = "raise the learning rate, and look at the hooks on the optimizer"
        else:
            why = "Nothing is written to them: the step skips its work, or works on a copy."
            fix = f"look at what {name}.step() does; compare its param_groups with the model's parameters"
        return self.finding(
            f"{name}{made_at(known.subject.made_at)} steps with gradients and a learning rate that are not zero, and "
            f"no parameter changes.\n{why}",
            fix,
            [known.subject],
            site=known.site,
            count=known.steps,
            key=name,
        )


def _low_precision(optimizer: Optimizer) -> str:
    kinds = {str(p.dtype).removeprefix("torch.") for p in parameters_of(optimizer)}
    return next((kind for kind in ("float16", "bfloat16") if kind in kinds), "")
