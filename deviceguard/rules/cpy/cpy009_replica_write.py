"""CPY009: state that a forward pass assigns on a short-lived replica."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from deviceguard.events import ModuleCalled, ModuleReturned, ReplicaMade
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.phrases import listed, made_at
from deviceguard.rules.rule import Rule, on

ENOUGH = 2
"""Forward passes in which the same attribute is assigned."""


class ReplicaWrite(Rule):
    """``forward`` assigns a buffer or a counter, on a replica that ``DataParallel`` throws away.

    What it does:
        Compares the buffers and numbers of a replica before and after its forward pass. What is assigned anew, pass
        after pass, is lost with the replica.

    Why it hurts:
        Running averages and counters never move, and nothing is said.

    Example:
        class Smooth(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(4, device="cuda"))
                self.register_buffer("level", torch.zeros(4, device="cuda"))
            def forward(self, x):
                self.level = 0.9 * self.level + 0.1 * x.detach().mean(0)
                return x * self.w
        net = Smooth()
        for _ in range(3):
            replica = net._replicate_for_data_parallel()
            replica.w = net.w
            replica(torch.ones(2, 4, device="cuda")).sum().backward()

    Use instead:
        class Smooth(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(4, device="cuda"))
                self.register_buffer("level", torch.zeros(4, device="cuda"))
            def forward(self, x):
                self.level.mul_(0.9).add_(0.1 * x.detach().mean(0))
                return x * self.w
        net = Smooth()
        for _ in range(3):
            replica = net._replicate_for_data_parallel()
            replica.w = net.w
            replica(torch.ones(2, 4, device="cuda")).sum().backward()

    When it stays silent:
        For buffers that are updated in place, and for attributes that only cache something of the pass.

    Repair:
        None by itself.

    References:
        https://github.com/pytorch/pytorch/issues/2864
    """

    code: ClassVar[str] = "CPY009"
    name: ClassVar[str] = "replica-write"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakIdKeyDictionary

        self._replicas: Any = WeakIdKeyDictionary()
        self._before: Any = WeakIdKeyDictionary()
        self._seen: dict[tuple[str, str], int] = {}

    @on(ReplicaMade)
    def made(self, event: ReplicaMade) -> None:
        """A replica is made."""
        self._replicas[event.replica] = (
            self.context.subjects.model(event.source),
            type(event.source).__name__,
        )

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """What it holds before its forward pass."""
        if len(self._replicas) and event.module in self._replicas:
            self._before[event.module] = _state(event.module)

    @on(ModuleReturned)
    def returned(self, event: ModuleReturned) -> Iterator[Finding]:
        """What was assigned in it."""
        before = self._before.pop(event.module, None) if len(self._before) else None
        if before is None:
            return
        subject, kind = self._replicas[event.module]
        after = _state(event.module)
        changed = [name for name, value in before.items() if name in after and after[name] != value]
        again = []
        for name in changed:
            self._seen[kind, name] = self._seen.get((kind, name), 0) + 1
            if self._seen[kind, name] >= ENOUGH:
                again.append(name)
        if again:
            yield self._finding(subject, kind, again)

    def _finding(self, subject: Subject, kind: str, names: list[str]) -> Finding:
        many = len(names) > 1
        return self.finding(
            f"{kind}.forward assigns {listed(['self.' + name for name in names])} on a replica of {subject.name}"
            f"{made_at(subject.made_at)}, and DataParallel throws the replica away: {subject.name} keeps its old value"
            f"{'s' if many else ''}.",
            f"register {'them' if many else 'it'} as buffer{'s' if many else ''} and update in place "
            f"(self.{names[0]}.copy_(...)), or use DistributedDataParallel",
            [subject],
            key=kind + names[0],
        )


def _state(module: Any) -> dict[str, Any]:
    """Identity of each buffer, value of each number among the attributes."""
    numbers = {k: v for k, v in vars(module).items() if type(v) in (int, float) and not k.startswith("_")}
    return {**{name: id(value) for name, value in module._buffers.items() if value is not None}, **numbers}
