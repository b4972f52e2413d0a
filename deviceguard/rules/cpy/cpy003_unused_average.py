"""CPY003: an averaged copy that is kept up to date and never evaluated or saved."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import (
    AverageUpdated,
    ModuleCalled,
    ModuleCopied,
    ModuleStateTaken,
    ObjectSaved,
    OptimizerStepped,
    RunEnded,
)
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.ledger.averages import Averages
from deviceguard.ledger.families import unwrapped
from deviceguard.ledger.tensors import tensors_in
from deviceguard.ledger.values import storage_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

ENOUGH = 3
"""Updates that make an average."""


@dataclasses.dataclass(slots=True)
class _Kept:
    """An average.

    Attributes:
        subject: its name, as text for the end of the run.
        raw: the model it averages.
        parts: identities of the modules and memory it consists of.
        updates: how often it was updated.
        used: calls, saves and states taken since the last update.
        ever: the same over the whole run.
        raw_used: evaluations and saves of the raw model since the last update.
        raw_first: True when the raw model was evaluated before the average was.
        named: True when the user's code has a name for it; False for one that a framework's handler keeps to itself.
    """

    subject: Subject
    raw: Subject
    storages: frozenset[int]
    raw_storages: frozenset[int]
    updates: int = 0
    used: int = 0
    ever: int = 0
    raw_used: int = 0
    raw_first: bool = False
    named: bool = True


class UnusedAverage(Rule):
    """An average of the weights is updated at every step, and the raw model is evaluated or saved in its place.

    What it does:
        Counts the updates of averaged models (``AveragedModel``, and copies that are updated by hand) and what is done
        with them. It reports one that is never run, saved or read, while the raw model is.

    Why it hurts:
        The option is on, costs time and memory, and changes nothing in the score.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        ema = torch.optim.swa_utils.AveragedModel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(8, 4, device="cuda")
        for _ in range(4):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            ema.update_parameters(net)
        net.eval()
        with torch.no_grad():
            score = net(x)

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        ema = torch.optim.swa_utils.AveragedModel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(8, 4, device="cuda")
        for _ in range(4):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            ema.update_parameters(net)
        ema.eval()
        with torch.no_grad():
            score = ema(x)

    When it stays silent:
        When the average is run, saved, or its state is read. Where the raw model is merely evaluated first and more
        often, or where a framework's handler keeps the average to itself, it is advice.

    Repair:
        None by itself.

    References:
        https://github.com/pengzhiliang/MAE-pytorch/issues/31
    """

    code: ClassVar[str] = "CPY003"
    name: ClassVar[str] = "unused-average"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._averages = Averages(self.context.ledger)
        self._kept: weakref.WeakKeyDictionary[nn.Module, _Kept] = weakref.WeakKeyDictionary()
        self._all: list[_Kept] = []

    @on(ModuleCopied)
    def copied(self, event: ModuleCopied) -> None:
        """A copy may become an average."""
        if event.source is not None:
            self._averages.add(event.copy)

    @on(AverageUpdated)
    def updated(self, event: AverageUpdated) -> None:
        """PyTorch's own averages."""
        self._update(event.average, unwrapped(event.source))

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Averages kept by hand."""
        if not self.context.steps.examined:
            return
        self._averages.look()
        for module, source, average in self._averages.averages():
            known = self._kept.get(module)
            if known is None or known.updates != average.changes:
                self._update(module, source, average.changes)

    def _update(self, average: nn.Module, source: nn.Module, updates: int = 0) -> None:
        known = self._kept.get(average)
        if known is None:
            subjects = self.context.subjects
            known = _Kept(subjects.model(average), subjects.model(source), _memory(average), _memory(source))
            known.named = known.subject.name != type(average).__name__
            self._kept[average] = known
            self._all = [*self._all[-50:], known]
        known.updates = updates or known.updates + 1
        known.used, known.raw_used, known.raw_first = 0, 0, False

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """Which of the two is evaluated?"""
        if event.is_root and self._kept:
            import torch

            evaluates = not event.module.training or not torch.is_grad_enabled()
            self._use(_memory(event.module), raw_counts=evaluates)

    @on(ModuleStateTaken, ObjectSaved)
    def taken(self, event: ModuleStateTaken | ObjectSaved) -> None:
        """Which of the two is read or saved?"""
        if self._kept:
            saved = isinstance(event, ObjectSaved)
            obj = event.obj if isinstance(event, ObjectSaved) else dict(event.state)
            self._use(frozenset(storage_of(tensor) for tensor in tensors_in(obj)), raw_counts=saved)

    def _use(self, storages: frozenset[int], raw_counts: bool) -> None:
        for known in self._all:
            if known.storages & storages:
                known.used, known.ever = known.used + 1, known.ever + 1
            elif raw_counts and known.raw_storages & storages:
                known.raw_used += 1
                known.raw_first = known.raw_first or not known.ever

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Averages nobody used."""
        for known in self._all:
            if known.updates < ENOUGH or not known.raw_used:
                continue
            if not known.ever:
                severity = self.severity if known.named else Severity.ADVICE
                yield self._finding(known, severity, "never run or saved")
            elif known.raw_first and known.raw_used > known.used:
                yield self._finding(known, Severity.ADVICE, f"run only after {known.raw.name} was evaluated")

    def _finding(self, known: _Kept, severity: Severity, what: str) -> Finding:
        return self.finding(
            f"{known.subject.name}{made_at(known.subject.made_at)}, the average of {known.raw.name}, was updated "
            f"{known.updates} times and is {what}; {known.raw.name} is evaluated or saved in its place.",
            f"evaluate and save {known.subject.name}, or leave the average out",
            [known.subject, known.raw],
            site=known.subject.made_at or user_site(),
            severity=severity,
            count=known.updates,
            key=known.subject.name,
        )


def _memory(module: nn.Module) -> frozenset[int]:
    return frozenset(storage_of(parameter) for parameter in module.parameters())
