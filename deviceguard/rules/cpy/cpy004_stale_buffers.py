"""CPY004: an averaged copy whose normalisation buffers never follow the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import ModuleCalled, ModuleCopied, OptimizerStepped, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.ledger.averages import ENOUGH, Averages
from deviceguard.ledger.values import Sample, sample_of
from deviceguard.naming.objects import joined
from deviceguard.naming.phrases import listed, made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import weakref

    from torch import nn

BUFFERS = ("running_mean", "running_var")


@dataclasses.dataclass(slots=True)
class _Copy:
    """Normalisation buffers of one copy.

    Attributes:
        subject: the copy, as text for the end of the run.
        source: the model it averages.
        first: elements of its buffers when it was first looked at.
        stale: paths of the buffers that have not followed.
    """

    subject: Subject
    source: Subject
    first: dict[str, Sample | None]
    stale: tuple[str, ...] = ()
    changes: int = 0


class StaleBuffers(Rule):
    """An averaged copy follows the parameters of the model, but its normalisation buffers stay as they were.

    What it does:
        For copies that are updated from a trained model it compares ``running_mean`` and ``running_var`` with what they
        were, while those of the trained model move on.

    Why it hurts:
        In eval mode the copy normalises with statistics of an untrained network, and predicts garbage.

    Example:
        import copy
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to("cuda")
        ema = copy.deepcopy(net).requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            net(torch.randn(16, 4, device="cuda") + 5).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():
                for e, p in zip(ema.parameters(), net.parameters()):
                    e.lerp_(p, 0.5)

    Use instead:
        import copy
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to("cuda")
        ema = copy.deepcopy(net).requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            net(torch.randn(16, 4, device="cuda") + 5).pow(2).mean().backward()
            optimizer.step()
            with torch.no_grad():
                for e, p in zip(ema.parameters(), net.parameters()):
                    e.lerp_(p, 0.5)
                for e, b in zip(ema.buffers(), net.buffers()):
                    e.copy_(b)

    When it stays silent:
        When the copy runs in training mode and gathers statistics of its own, when the buffers are copied or refreshed
        at the end (``update_bn``), and for normalisation without buffers.

    Repair:
        None by itself.

    References:
        https://github.com/FlyreelAI/sesemi/issues/36
        https://github.com/hnuzhy/SSDA-YOLO/issues/21
        https://github.com/YU1ut/MixMatch-pytorch/issues/16
    """

    code: ClassVar[str] = "CPY004"
    name: ClassVar[str] = "stale-buffers"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        import weakref

        super().__init__(*args)  # type: ignore[arg-type]
        self._averages = Averages(self.context.ledger)
        self._copies: weakref.WeakKeyDictionary[nn.Module, _Copy] = weakref.WeakKeyDictionary()
        self._all: list[_Copy] = []
        self._starts: weakref.WeakKeyDictionary[nn.Module, dict[str, Sample | None]] = weakref.WeakKeyDictionary()

    @on(ModuleCopied)
    def copied(self, event: ModuleCopied) -> None:
        """Remember the buffers as they were."""
        if event.source is None:
            return
        self._averages.add(event.copy)
        found = {name: event.copy._buffers.get(name) for name in BUFFERS}
        values = {name: sample_of(buffer) for name, buffer in found.items() if buffer is not None}
        if values:
            self._starts[event.copy] = values

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Compare on examined steps."""
        if self.context.steps.examined and len(self._starts):
            self._averages.look()
            self._compare()

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """Compare when a copy is used: its buffers may have been refreshed."""
        if event.is_root and event.module in self._copies:
            self._compare()

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Report what never followed."""
        if len(self._starts):
            self._averages.look()
            self._compare()
        for known in self._all:
            if known.stale and known.changes >= ENOUGH:
                yield self._finding(known)

    def _compare(self) -> None:
        for copy, source, average in self._averages.averages():
            known = self._copies.get(copy)
            if known is None:
                subjects = self.context.subjects
                known = self._copies[copy] = _Copy(subjects.model(copy), subjects.model(source), {})
                self._all = [*self._all[-50:], known]
            known.changes = average.changes
            known.stale = tuple(self._stale(copy, source))

    def _stale(self, copy: nn.Module, source: nn.Module) -> Iterator[str]:
        parts = dict(source.named_modules())
        for path, part in copy.named_modules():
            start, twin = self._starts.get(part), parts.get(path)
            if start is None or twin is None:
                continue
            for name, first in start.items():
                mine, theirs = sample_of(part._buffers[name]), sample_of(twin._buffers[name])
                if None not in (first, mine, theirs) and mine == first and theirs != first:
                    yield f"{path}.{name}" if path else name

    def _finding(self, known: _Copy) -> Finding:
        names = [joined(known.subject.name, path) for path in known.stale]
        copy, source, many = known.subject.name, known.source.name, len(names) > 1
        return self.finding(
            f"{copy}{made_at(known.subject.made_at)} follows the parameters of {source}, but {listed(names)} "
            f"{'are' if many else 'is'} what {'they were' if many else 'it was'} when the copy was made.",
            f"copy the buffers in the same loop: for e, b in zip({copy}.buffers(), {source}.buffers()): e.copy_(b)",
            [known.subject, known.source],
            site=known.subject.made_at,
            count=known.changes,
            key=copy,
        )
