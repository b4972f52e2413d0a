"""CPY006: a module that is loaded from its own live state dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import ModuleStateLoaded, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.families import is_users_class, sources_of, structure_of
from deviceguard.ledger.tensors import tensors_in
from deviceguard.ledger.values import storage_of, versions_of
from deviceguard.naming.frames import user_site
from deviceguard.rules.rule import Rule, on

ENOUGH = 2
"""Loads of this kind in one line."""


@dataclasses.dataclass(slots=True)
class _Line:
    """A line in which a module is loaded from itself."""

    site: Site
    subject: Subject
    twin: Subject | None
    count: int = 0
    told: bool = False


class SelfLoad(Rule):
    """A module is loaded from its own state dict, which does nothing.

    What it does:
        Looks whether the tensors that ``load_state_dict`` is given are the module's own memory, fresh from its own
        ``state_dict()``. Again and again in one line, or on a copy of the model that is trained, it is a mistake.

    Why it hurts:
        The target network is never refreshed, and the values it gives stay those of the first day.

    Example:
        import copy
        online = torch.nn.Linear(4, 2).to("cuda")
        target = copy.deepcopy(online)
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            online(torch.ones(8, 4, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            target.load_state_dict(target.state_dict())

    Use instead:
        import copy
        online = torch.nn.Linear(4, 2).to("cuda")
        target = copy.deepcopy(online)
        optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            online(torch.ones(8, 4, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            target.load_state_dict(online.state_dict())

    When it stays silent:
        For a single round trip of a model's own state, and when the state is older than the weights (CPY002).

    Repair:
        None by itself.

    References:
        https://github.com/thesouther/MARL/issues/8
    """

    code: ClassVar[str] = "CPY006"
    name: ClassVar[str] = "self-load"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._lines: dict[tuple[str, int], _Line] = {}

    @on(ModuleStateLoaded)
    def loaded(self, event: ModuleStateLoaded) -> Iterator[Finding]:
        """Whose tensors are these?"""
        own = {storage_of(p) for p in event.module.parameters()}
        tensors = list(tensors_in(dict(event.state)))
        if not own or event.replaced or not own <= {storage_of(tensor) for tensor in tensors}:
            return
        record = next((r for t in tensors if (r := self.context.ledger.state_of(t)) is not None), None)
        if record is not None and self._is_old(event, record.versions, record.taken_in):
            return
        site = user_site()
        if site is None:
            return
        subject = self.context.subjects.model(event.module)
        line = self._lines.setdefault((site.file, site.line), _Line(site, subject, self._twin(event)))
        line.count += 1
        if line.count >= ENOUGH and not line.told:
            line.told = True
            yield self._finding(line)

    def _is_old(self, event: ModuleStateLoaded, versions: tuple[int, ...], taken_in: int) -> bool:
        first = [tensor for tensor in event.state.values() if hasattr(tensor, "_version")][:8]
        written = any(now > then + 1 for now, then in zip(versions_of(first), versions, strict=False))
        return written or taken_in < self.context.ledger.optimizer_steps

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """A single load of an untrained copy."""
        yield from (self._finding(line) for line in self._lines.values() if line.twin is not None and not line.told)

    def _twin(self, event: ModuleStateLoaded) -> Subject | None:
        """The trained model it should have been loaded from, when it is not trained itself."""
        ledger = self.context.ledger
        if ledger.is_trained(event.module):
            return None
        for source in sources_of(ledger, event.module):
            if ledger.is_trained(source):
                return self.context.subjects.model(source)
        for model, _ in ledger.models():
            alike = type(model) is type(event.module) and structure_of(model) == structure_of(event.module)
            if alike and is_users_class(model) and ledger.is_trained(model):
                return self.context.subjects.model(model)
        return None

    def _finding(self, line: _Line) -> Finding:
        name, twin = line.subject.name, line.twin.name if line.twin else "other"
        return self.finding(
            f"{name} is loaded from its own state dict: nothing changes."
            + (f" The model that is trained is {twin}." if line.twin else ""),
            f"{name}.load_state_dict({twin}.state_dict())",
            [line.subject, *([line.twin] if line.twin else [])],
            site=line.site,
            count=line.count,
        )
