"""OPT004: gradients are produced again and again, and the optimizer never steps."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import BackwardEnded, GradientsCleared, OptimizerStepped, RunEnded, SchedulerStepped
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import gradient_of, spread, versions_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

MIN_BACKWARDS = 3
"""Backward passes that must have left gradients."""

MIN_SIGNS = 2
"""How often the program must have cleared its gradients, or stepped its scheduler."""

MOST = 200


@dataclasses.dataclass(slots=True)
class _Idle:
    """An optimizer that has not stepped yet.

    Attributes:
        subject: its name, as text for the end of the run.
        site: the line of the last backward pass.
        versions: version counters of some of its parameters when it was first met.
        backwards: backward passes after which its parameters had gradients.
        cleared: times its gradients were cleared.
        scheduled: times its scheduler stepped.
        changed: True once its parameters change by another hand.
        scaled: True when a GradScaler handles it, which may skip steps.
        apart: identities of the optimizers that step and hold none of its parameters.
    """

    subject: Subject
    site: Site | None
    versions: tuple[int, ...]
    backwards: int = 0
    cleared: int = 0
    scheduled: int = 0
    changed: bool = False
    scaled: bool = False
    apart: set[int] = dataclasses.field(default_factory=set)


class NeverStepped(Rule):
    """Backward passes fill the gradients of an optimizer's parameters, and its ``step()`` is never called.

    What it does:
        Counts backward passes that leave gradients on the parameters of an optimizer which has not stepped. At the end
        of the run, an optimizer whose gradients the program cleared, or whose scheduler it stepped, and which never
        stepped itself, is reported.

    Why it hurts:
        Nothing is trained; the loss only moves with the batches.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    When it stays silent:
        When the parameters change in another way (hand-written updates, the inner optimizer of a wrapper), when a
        ``GradScaler`` skips the steps, when the gradients are only looked at (attacks, saliency), for optimizers that
        nothing else is done with.

    Repair:
        None by itself.

    References:
        https://github.com/ClementPinard/SfmLearner-Pytorch/issues/5
    """

    code: ClassVar[str] = "OPT004"
    name: ClassVar[str] = "never-stepped"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._idle: weakref.WeakKeyDictionary[Optimizer, _Idle] = weakref.WeakKeyDictionary()
        self._kept: dict[int, _Idle] = {}
        self._stepped = 0

    @on(BackwardEnded)
    def backward(self, event: BackwardEnded) -> None:
        """Count gradients that nobody has used yet."""
        if not event.accumulates or (self._stepped and not self.context.steps.examined):
            return
        for optimizer, record in self.context.ledger.optimizers():
            if record.steps == 0:
                self._count(optimizer)

    def _count(self, optimizer: Optimizer) -> None:
        some = spread([p for p in parameters_of(optimizer) if p.requires_grad])
        if not any(gradient_of(p) is not None for p in some):
            return
        idle = self._idle.get(optimizer)
        if idle is None:
            if len(self._kept) >= MOST:
                return
            idle = _Idle(self.context.subjects.optimizer(optimizer), None, versions_of(some))
            self._idle[optimizer] = self._kept[id(idle)] = idle
        idle.backwards += 1
        idle.site = user_site() if idle.backwards <= MIN_BACKWARDS else idle.site
        idle.changed = idle.changed or versions_of(some) != idle.versions

    @on(GradientsCleared, SchedulerStepped)
    def sign(self, event: GradientsCleared | SchedulerStepped) -> None:
        """Signs that the program means to train with it."""
        owner = event.owner if isinstance(event, GradientsCleared) else event.optimizer
        idle = self._idle.get(owner) if hasattr(owner, "param_groups") else None  # type: ignore[arg-type]
        if idle is not None:
            idle.cleared += isinstance(event, GradientsCleared)
            idle.scheduled += isinstance(event, SchedulerStepped)

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """It steps after all."""
        self._stepped += 1
        idle = self._idle.pop(event.optimizer, None) if self._idle else None
        if idle is not None:
            self._kept.pop(id(idle), None)
        for other, waiting in self._idle.items():
            if not waiting.changed and id(event.optimizer) not in waiting.apart:
                _compare(other, waiting, event.optimizer)

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Report those that never did."""
        found = [
            idle
            for idle in self._kept.values()
            if idle.backwards >= MIN_BACKWARDS and max(idle.cleared, idle.scheduled) >= MIN_SIGNS and not idle.changed
        ]
        if not found:
            return
        scaled = _handled_by_scalers()
        for optimizer, idle in list(self._idle.items()):
            some = spread([p for p in parameters_of(optimizer) if p.requires_grad])
            idle.scaled = id(optimizer) in scaled
            idle.changed = idle.changed or versions_of(some) != idle.versions
        for idle in found:
            if not idle.changed and not idle.scaled:
                yield self._finding(idle)

    def _finding(self, idle: _Idle) -> Finding:
        also = f", and its scheduler stepped {idle.scheduled} times" if idle.scheduled else ""
        name = idle.subject.name
        return self.finding(
            f"{name}{made_at(idle.subject.made_at)} never stepped, although {idle.backwards} backward passes left "
            f"gradients on its parameters{also}.\nNothing is trained.",
            f"call {name}.step() after backward()" + (", and the scheduler after it" if idle.scheduled else ""),
            [idle.subject],
            site=idle.site,
            count=idle.backwards,
            key=name,
        )


def _compare(optimizer: Optimizer, idle: _Idle, stepped: Optimizer) -> None:
    """Another optimizer trains the same parameters: a wrapper's inner one, whose fused kernels change no version."""
    held = {id(p) for p in parameters_of(stepped)}
    if any(id(p) in held for p in parameters_of(optimizer)):
        idle.changed = True
    else:
        idle.apart.add(id(stepped))


def _handled_by_scalers() -> set[int]:
    """Identities of the optimizers that some GradScaler knows. A walk over all objects, only before a finding."""
    from torch.amp import GradScaler

    found: set[int] = set()
    for candidate in gc.get_objects():
        if issubclass(type(candidate), GradScaler):
            found |= set(getattr(candidate, "_per_optimizer_states", {}))
    return found
