"""CPY002: a snapshot of a model that shares memory with the parameters that go on training."""

from __future__ import annotations

import dataclasses
import itertools
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import ModuleStateLoaded, ModuleStateTaken, ObjectSaved, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.tensors import parameters_of, tensors_in
from deviceguard.ledger.values import storage_of, versions_of
from deviceguard.naming.frames import user_frame, user_site
from deviceguard.naming.holdings import held_values
from deviceguard.naming.phrases import made_at
from deviceguard.naming.provenance import origin_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

SNAPSHOT = re.compile(
    r"(?:^|[_.])(best|before|init|initial|start|old|prev|previous|snapshot|snap|backup|bak|original|orig|w0)(?=$|[_\d])",
    re.I,
)
"""Names of variables that are meant to keep a former state."""

ROLE = re.compile(r"(?:^|[_.])(target|tgt|teacher|old|ema|best|snapshot|backup|initial|reference)(?=$|[_\d])", re.I)
"""Names of models that are meant to be another object than the one that is trained."""

MOST_TAKEN = 64
"""State dicts that are followed at a time."""

ENOUGH = 2
"""Steps at which the same alias is held."""


@dataclasses.dataclass(slots=True)
class _Taken:
    """A state dict that was taken from a model, to see whether an average is accumulated in it.

    Attributes:
        state: the dictionary.
        module: the model whose memory it holds.
        site: the line that took it.
        versions: version counters of the first parameters then.
        trained: training steps of the model then.
        written: the model it was loaded into after it had been written to; set once that has happened.
    """

    state: weakref.ref[Any]
    module: weakref.ref[nn.Module]
    site: Site | None
    versions: tuple[int, ...]
    trained: int
    written: str = ""


@dataclasses.dataclass(slots=True)
class _Held:
    """A variable that holds memory of parameters being trained.

    Attributes:
        name: the variable.
        identity: of the object it holds.
        model: the model whose memory it is.
        how: ``dict``, ``tensors`` or ``module``.
        site: the line that made it.
        seen: steps at which it was held.
        last: number of the last such step.
        saved: True when it was saved before anything was trained on.
    """

    name: str
    identity: int
    model: Subject
    how: str
    site: Site | None
    seen: int = 1
    last: int = 0
    saved: bool = False
    other: str = ""
    storages: frozenset[int] = frozenset()


class AliasedSnapshot(Rule):
    """A snapshot of the weights shares its memory with the model, and so changes with every step.

    What it does:
        Looks for a state dict, or tensors, or a second name of a model, that are kept under a name which says that
        a former state is meant (``best``, ``before``, ``target``), and whose memory is that of parameters which are
        trained on; for a state dict that is loaded back into the model it shares its memory with; and for a state dict
        in which the sum of several models is accumulated, and with it in the model it was taken from, when that model
        is not loaded afresh.

    Why it hurts:
        ``state_dict()``, ``dict.copy()``, ``.detach()``, ``.cpu()`` on the host and ``.to()`` copy nothing. The "best"
        weights are the last ones, the target network is the online network, a comparison finds no difference.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        best = net.state_dict()
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()
        net.load_state_dict(best)

    Use instead:
        import copy
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        best = copy.deepcopy(net.state_dict())
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()
        net.load_state_dict(best)

    When it stays silent:
        For state dicts that are saved or loaded at once, that are dropped, or that are held under a neutral name and
        not loaded back; for lists of parameters that are only parameters.

    Repair:
        The snapshot is deep-copied where it is taken.

    References:
        https://github.com/WMD-group/SMACT/pull/601
        https://github.com/asappresearch/flambe/pull/168
        https://github.com/datawhalechina/easy-rl/issues/140
        https://github.com/aqlaboratory/openfold/pull/90
    """

    code: ClassVar[str] = "CPY002"
    name: ClassVar[str] = "aliased-snapshot"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakTensorKeyDictionary

        self._held: dict[tuple[str, str], _Held] = {}
        self._kept: dict[str, _Held] = {}
        self._told: set[str] = set()
        self._pending = 2
        self._saved: Any = WeakTensorKeyDictionary()
        self._taken: list[_Taken] = []
        self._refreshed: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    @on(ModuleStateTaken)
    def taken(self, event: ModuleStateTaken) -> None:
        """A snapshot may have been taken: look at the next steps."""
        self._pending = 2
        try:
            state = weakref.ref(event.state)
        except TypeError:  # a plain dict
            return
        module, versions = event.module, _first_versions(event.module)
        pending = [t for t in self._taken if t.module() is not None and (t.written or t.state() is not None)]
        taken = _Taken(state, weakref.ref(module), user_site(), versions, self._trained_steps(module))
        self._taken = [*pending[1 - MOST_TAKEN :], taken]

    def _trained_steps(self, module: nn.Module) -> int:
        record = self.context.ledger.model(module)
        return record.trained_steps if record is not None else 0

    def _note_accumulation(self, event: ModuleStateLoaded) -> None:
        """A state that was added to in place, and with it the model it was taken from."""
        for taken in self._taken:
            module = taken.module()
            if module is None or module is event.module or taken.state() is not event.state:
                continue
            versions = _first_versions(module)
            if versions != taken.versions and taken.trained == self._trained_steps(module):
                taken.written = self.context.subjects.model_name(event.module)

    def _accumulations(self) -> Iterator[Finding]:
        """The models that still hold what was accumulated in their memory."""
        for taken in self._taken:
            module = taken.module()
            if not taken.written or module is None or module in self._refreshed:
                continue
            subject = self.context.subjects.model(module)
            yield self.finding(
                f"An average was accumulated in the memory of {subject.name}: the state dict{made_at(taken.site)} is "
                f"not a copy, so that adding to it overwrote {subject.name} before it was loaded into {taken.written}.",
                f"start the sum from a copy{_line(taken.site)}: copy.deepcopy({subject.name}.state_dict())",
                [subject],
                site=taken.site,
                key=subject.name,
            )

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> None:
        """What do the user's variables hold?"""
        if not self.context.steps.examined and not self._pending:
            return
        self._pending = max(0, self._pending - 1)
        storages = {storage_of(p): p for p in parameters_of(event.optimizer)}
        modules: dict[tuple[str, int], list[str]] = {}
        for scope, name, value in held_values(user_frame()):
            found = self._alias(name, value, storages)
            if found is not None:
                self._note(scope, name, value, *found)
            elif hasattr(value, "_parameters") and hasattr(value, "parameters") and not isinstance(value, type):
                modules.setdefault((scope, id(value)), []).append(name)
                self._note_roles(scope, modules[scope, id(value)], value, storages)

    def _alias(self, name: str, value: Any, storages: Mapping[int, torch.Tensor]) -> tuple[str, torch.Tensor] | None:
        """Kind of the alias and a parameter it aliases."""
        import torch

        if not SNAPSHOT.search(name):
            return None
        if isinstance(value, dict) and value:
            how, tensors = "dict", list(value.values())
        elif isinstance(value, list | tuple) and value:
            how, tensors = "tensors", list(value)
        elif isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            how, tensors = "tensors", [value]
        else:
            return None
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors[:64]):
            return None
        parameter = next((storages[s] for t in tensors[:64] if (s := storage_of(t)) in storages), None)
        return (how, parameter) if parameter is not None else None

    def _note(self, scope: str, name: str, value: Any, how: str, parameter: torch.Tensor) -> None:
        known = self._held.get((scope, name))
        identity = id(next(iter(value.values()))) if isinstance(value, dict) else id(value)
        if known is not None and known.identity == identity:
            if known.last < self.context.ledger.optimizer_steps:
                known.seen += 1
                known.last = self.context.ledger.optimizer_steps
            return
        owner, _ = self.context.ledger.owner_of(parameter)
        subject = (
            self.context.subjects.model(owner) if owner is not None else self.context.subjects.parameter(parameter)
        )
        tensors = frozenset(storage_of(t) for t in tensors_in(value))
        held = _Held(name, identity, subject, how, self._origin(name, value), storages=tensors)
        held.last = self.context.ledger.optimizer_steps
        held.saved = any(tensor in self._saved for tensor in tensors_in(value))
        self._held[scope, name] = self._kept[name] = held

    def _note_roles(self, scope: str, names: list[str], module: nn.Module, storages: Mapping[int, Any]) -> None:
        """Two variables for one trained module, one of them named after the role of a separate one."""
        special = [name for name in names if ROLE.search(name) or SNAPSHOT.search(name)]
        plain = [name for name in names if name not in special]
        if not special or not plain or not any(storage_of(p) in storages for p in module.parameters()):
            return
        name, now = special[0], self.context.ledger.optimizer_steps
        known = self._held.get((scope, name))
        if known is None or known.identity != id(module):
            subject = self.context.subjects.model(module)
            known = _Held(name, id(module), subject, "module", self._origin(name, module), other=plain[-1], last=now)
            self._held[scope, name] = self._kept[name] = known
        elif known.last < now:
            known.seen, known.last = known.seen + 1, now

    def _origin(self, name: str, value: Any) -> Site | None:
        frame = user_frame()
        origin = origin_of(name, frame, frame.f_lineno) if frame is not None else None
        if origin is not None and origin.bound_at is not None:
            return origin.bound_at
        first = next(iter(tensors_in(value)), None)
        record = self.context.ledger.state_of(first) if first is not None else None
        return record.taken_at if record is not None else None

    @on(ObjectSaved)
    def saved(self, event: ObjectSaved) -> None:
        """A state that is saved at once needs no copy."""
        tensors = list(tensors_in(event.obj))
        for tensor in tensors:
            if self.context.ledger.state_of(tensor) is not None:
                self._saved[tensor] = True
        storages = {storage_of(tensor) for tensor in tensors}
        for held in self._held.values():
            held.saved = held.saved or (held.how == "dict" and bool(held.storages & storages))

    @on(ModuleStateLoaded)
    def loaded(self, event: ModuleStateLoaded) -> Iterator[Finding]:
        """A snapshot that is loaded back into the memory it consists of."""
        self._note_accumulation(event)
        if any(taken.written and taken.module() is event.module for taken in self._taken):
            self._refreshed.add(event.module)
        self._taken = [taken for taken in self._taken if taken.module() is not event.module]
        own = {storage_of(p) for p in event.module.parameters()}
        tensors = list(tensors_in(dict(event.state)))
        aliases = [tensor for tensor in tensors if storage_of(tensor) in own]
        record = next((r for t in aliases if (r := self.context.ledger.state_of(t)) is not None), None)
        if record is None or event.replaced:
            return
        first = [tensor for tensor in event.state.values() if hasattr(tensor, "_version")][:8]
        written = any(now > then + 1 for now, then in zip(versions_of(first), record.versions, strict=False))
        if not written and record.taken_in >= self.context.ledger.optimizer_steps:
            return
        subject = self.context.subjects.model(event.module)
        self._told.add(subject.name)
        yield self.finding(
            f"{subject.name} is loaded from its own memory: the state dict{made_at(record.taken_at)} shares its "
            "tensors with the model, and has changed with every step since. Nothing is restored.",
            f"take a copy{_line(record.taken_at)}: copy.deepcopy({subject.name}.state_dict())",
            [subject],
            key=subject.name,
        )

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Aliases that were held over training steps under a telling name."""
        yield from self._accumulations()
        for held in self._kept.values():
            if held.seen < ENOUGH or held.saved or (held.how == "dict" and held.model.name in self._told):
                continue
            yield self._finding(held)

    def _finding(self, held: _Held) -> Finding:
        subject = Subject(held.name, "snapshot", made_at=held.site)
        if held.how == "module":
            message = (
                f"{held.name} and {held.other} are two names of one model: what is trained as {held.other} changes "
                f"{held.name} with it (.to() returns the same object)."
            )
            fix = f"{held.name} = copy.deepcopy({held.other})"
        else:
            message = (
                f"{held.name} shares its memory with the parameters of {held.model.name}, which were trained on: it "
                "holds their present values, not those of the moment it was taken."
            )
            copied = "{k: v.detach().clone() for k, v in " + held.model.name + ".state_dict().items()}"
            fix = (
                f"{held.name} = {copied}"
                if held.how == "dict"
                else f"clone what you keep in {held.name}: .detach().clone()"
            )
        return self.finding(message, fix, [subject, held.model], site=held.site, count=held.seen, key=held.name)


def _first_versions(module: nn.Module) -> tuple[int, ...]:
    return versions_of(itertools.islice(module.parameters(), 8))


def _line(site: Site | None) -> str:
    return f" in line {site.line}" if site is not None else ""
