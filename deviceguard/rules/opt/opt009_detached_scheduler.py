"""OPT009: a scheduler that drives an optimizer, or param groups, that never step."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import OptimizerStepped, RunEnded, SchedulerStepped
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.tensors import parameters_of
from deviceguard.naming.frames import user_frame, user_site
from deviceguard.naming.objects import variable_of
from deviceguard.naming.phrases import made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

ENOUGH = 2
"""Steps of a scheduler on foreign groups after which it is reported."""

ENOUGH_IDLE = 3
"""Steps of a scheduler whose optimizer never steps, judged at the end of the run."""


@dataclasses.dataclass(slots=True)
class _Driven:
    """A scheduler.

    Attributes:
        name: its name, as text for the end of the run.
        optimizer: what it drives.
        steps: its steps.
        site: the line of its last steps.
        foreign: steps in which another optimizer trained the parameters.
        trained: the optimizer that does.
        idle: True while its optimizer has not stepped.
    """

    name: str
    optimizer: Subject
    steps: int = 0
    site: Site | None = None
    foreign: int = 0
    trained: Subject | None = None
    idle: bool = True
    told: bool = False


class DetachedScheduler(Rule):
    """A learning rate scheduler changes param groups that no stepping optimizer uses.

    What it does:
        When a scheduler steps, it compares the groups it changes with those of the optimizers that really step. It
        reports a scheduler whose optimizer is a wrapper with groups of its own, or an older optimizer over the same
        parameters, or one that never steps while others do.

    Why it hurts:
        The logged learning rate decays and the applied one does not.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()
            scheduler.step()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()
            scheduler.step()

    When it stays silent:
        For wrappers that share the groups of the optimizer inside, and for optimizers that step later or elsewhere.

    Repair:
        None by itself.

    References:
        https://github.com/microsoft/dp-transformers/issues/43
    """

    code: ClassVar[str] = "OPT009"
    name: ClassVar[str] = "detached-scheduler"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._driven: weakref.WeakKeyDictionary[Any, _Driven] = weakref.WeakKeyDictionary()
        self._kept: list[_Driven] = []
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Which optimizers really step."""
        self._stepped.add(event.optimizer)

    @on(SchedulerStepped)
    def scheduled(self, event: SchedulerStepped) -> Iterator[Finding]:
        """Does what it drives step?"""
        known = self._driven.get(event.scheduler)
        if known is None:
            known = self._new(event)
        known.steps += 1
        known.idle = known.idle and event.optimizer not in self._stepped and not self._shares(event.optimizer)
        if not known.idle or known.told:
            return
        known.site = user_site()
        other = self._trains_instead(event.optimizer)
        if other is None:
            return
        known.foreign += 1
        known.trained = self.context.subjects.optimizer(other)
        if known.foreign >= ENOUGH:
            known.told = True
            yield self._foreign(known)

    def _new(self, event: SchedulerStepped) -> _Driven:
        name = variable_of(event.scheduler, user_frame()) or type(event.scheduler).__name__
        known = _Driven(name, self.context.subjects.optimizer(event.optimizer))
        self._driven[event.scheduler] = known
        self._kept = [*self._kept[-100:], known]
        return known

    def _shares(self, optimizer: Optimizer) -> bool:
        """True for a wrapper whose groups are those of an optimizer that steps."""
        groups = {id(group) for group in optimizer.param_groups}
        return any(id(group) in groups for other in self._stepped for group in other.param_groups)

    def _trains_instead(self, optimizer: Optimizer) -> Optimizer | None:
        """An optimizer that steps on the same parameters, with other groups."""
        held = {id(p) for p in parameters_of(optimizer)}
        for other in list(self._stepped):
            if other is not optimizer and any(id(p) in held for p in parameters_of(other)):
                return other
        return None

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Schedulers of optimizers that never stepped, in a run in which others did."""
        if not self.context.ledger.optimizer_steps:
            return
        for known in self._kept:
            if known.idle and not known.told and known.steps >= ENOUGH_IDLE:
                yield self._idle(known)

    def _foreign(self, known: _Driven) -> Finding:
        trained = known.trained or known.optimizer
        return self.finding(
            f"{known.name} changes the learning rate of {known.optimizer.name}{made_at(known.optimizer.made_at)}, "
            f"which never steps.\nThe parameters are trained by {trained.name}{made_at(trained.made_at)}, "
            "which has param groups of its own: its learning rate stays as it is.",
            f"build the scheduler on the optimizer that steps ({trained.name}), or share its param_groups list",
            [known.optimizer, trained],
            site=known.site,
            count=known.foreign,
            key=known.name,
        )

    def _idle(self, known: _Driven) -> Finding:
        return self.finding(
            f"{known.name} stepped {known.steps} times, but its optimizer {known.optimizer.name}"
            f"{made_at(known.optimizer.made_at)} never did; other optimizers train the model.",
            "build the scheduler on the optimizer that steps",
            [known.optimizer],
            site=known.site,
            count=known.steps,
            key=known.name,
        )
