"""OPT005: gradients that are carried from one step into the next."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import (
    BackwardEnded,
    BackwardStarted,
    GradientsCleared,
    OptimizerStepped,
    OptimizerStepping,
    RunEnded,
)
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import Sample, gradient_of, sample_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import listed
from deviceguard.rules.opt.gradient_watch import LeftOver, has_grown, left_over, look_before_backward
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

ENOUGH = 3
"""Steps in a row that begin with the gradients of the step before, after which it is reported at once."""

ENOUGH_AT_END = 2
"""The same at the end of a run."""


@dataclasses.dataclass(slots=True)
class _Carried:
    """What is known of one optimizer.

    Attributes:
        left: gradients that were there after its last step.
        carried: True when the backward pass after it added to them.
        in_a_row: steps in a row that used such gradients.
        subjects: the parameters and the optimizer, as text.
        site: the line of the last such step.
        told: True once it was reported.
    """

    left: list[LeftOver] = dataclasses.field(default_factory=list)
    carried: bool = False
    in_a_row: int = 0
    subjects: tuple[Subject, ...] = ()
    site: Site | None = None
    fed: bool = False
    told: bool = False


class StaleGradient(Rule):
    """Gradients are not cleared between steps, so that every step uses the sum of all gradients so far.

    What it does:
        After a ``step()`` it notes the gradients of a few parameters. When the next backward pass adds to those same,
        still unchanged values, and the next step uses the sum, step after step, that is reported. Workers whose
        gradients are handed to another model's optimizer are watched too.

    Why it hurts:
        The effective gradient grows without bound and points to where the model was long ago.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(5):
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    When it stays silent:
        For gradient accumulation, whatever its period, as long as the gradients are cleared after the step that used
        them; for gradients that are scaled down by hand between steps; for networks that only pass gradients on.

    Repair:
        None by itself.

    References:
        https://github.com/MorvanZhou/pytorch-A3C/issues/21
    """

    code: ClassVar[str] = "OPT005"
    name: ClassVar[str] = "stale-gradient"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._known: weakref.WeakKeyDictionary[Optimizer, _Carried] = weakref.WeakKeyDictionary()
        self._kept: list[_Carried] = []
        self._inside = 0

    @on(OptimizerStepping)
    def before_step(self, event: OptimizerStepping) -> Iterator[Finding]:
        """A step that uses gradients of the step before."""
        self._inside += 1
        known = self._known.get(event.optimizer)
        if known is None or not known.left:
            return
        if not known.carried:
            known.in_a_row, known.left = 0, []
            return
        known.carried, known.in_a_row = False, known.in_a_row + 1
        known.site = user_site()
        if not known.subjects:
            known.subjects = self._subjects(known, event.optimizer)
            self._kept = [*self._kept[-100:], known]
        if known.in_a_row >= ENOUGH and not known.told:
            known.told = True
            yield self._finding(known)

    @on(OptimizerStepped)
    def after_step(self, event: OptimizerStepped) -> None:
        """Note the gradients that the step has used."""
        self._inside = max(0, self._inside - 1)
        if not self.context.steps.examined:
            known = self._known.get(event.optimizer)
            if known is not None:
                known.left = []
            return
        known = self._known.get(event.optimizer)
        if known is None:
            known = self._known[event.optimizer] = _Carried()
        known.fed = self.context.ledger.optimizer(event.optimizer).fed
        known.left = left_over(self._watched(event.optimizer, known.fed))

    def _watched(self, optimizer: Optimizer, fed: bool) -> list[torch.Tensor]:
        """Its parameters; those of the worker it is fed from where their gradients are handed on."""
        held = parameters_of(optimizer)
        if not fed:
            return held
        handed: set[tuple[torch.Size, Sample | None]] = {
            (p.shape, sample) for p in held if (g := gradient_of(p)) is not None and (sample := sample_of(g, 16))
        }
        unowned = self.context.ledger.unowned_with_gradient()
        return [p for p in unowned if (p.shape, sample_of(p.grad, 16)) in handed]  # type: ignore[arg-type]

    @on(BackwardStarted)
    def backward_starts(self, event: BackwardStarted) -> None:
        """Are they still there?"""
        if not event.accumulates or self._inside:
            return
        for known in self._known.values():
            if not known.carried:
                known.left = look_before_backward(known.left)

    @on(BackwardEnded)
    def backward_ended(self, event: BackwardEnded) -> None:
        """Have they been added to?"""
        if not event.accumulates or self._inside:
            return
        for known in self._known.values():
            known.carried = known.carried or any(has_grown(left) for left in known.left)

    @on(GradientsCleared)
    def cleared(self, event: GradientsCleared) -> None:
        """Cleared after all."""
        if not any(known.left for known in self._known.values()):
            return
        owner: Any = event.owner
        held = parameters_of(owner) if hasattr(owner, "param_groups") else list(owner.parameters())
        identities = {id(p) for p in held}
        for known in self._known.values():
            if any(id(left.parameter()) in identities for left in known.left):
                known.carried, known.in_a_row, known.left = False, 0, []

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Short runs."""
        for known in self._kept:
            if known.in_a_row >= ENOUGH_AT_END and not known.told:
                yield self._finding(known)

    def _subjects(self, known: _Carried, optimizer: Optimizer) -> tuple[Subject, ...]:
        parameters = [p for p in (left.parameter() for left in known.left) if p is not None]
        subjects = self.context.subjects
        return (*(subjects.parameter(p) for p in parameters), subjects.optimizer(optimizer))

    def _finding(self, known: _Carried) -> Finding:
        names, optimizer = [subject.name for subject in known.subjects[:-1]], known.subjects[-1].name
        model = names[0].partition(".")[0] if names else "model"
        clear = f"{model}.zero_grad()" if known.fed else f"{optimizer}.zero_grad()"
        return self.finding(
            f"The gradients of {listed(names)} are never cleared: each {optimizer}.step() uses the sum of all "
            "gradients since the beginning.",
            f"call {clear} before each backward pass (or after each step)",
            known.subjects,
            site=known.site,
            count=known.in_a_row,
            key=optimizer,
        )
