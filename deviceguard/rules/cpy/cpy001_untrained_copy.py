"""CPY001: after training, a copy of the model that was never trained is evaluated or saved."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import ModuleCalled, ObjectSaved, OptimizerStepped, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.ledger.families import (
    Structure,
    are_copies,
    is_users_class,
    share_parameters,
    sources_of,
    structure_of,
    unwrapped,
)
from deviceguard.ledger.tensors import parameters_of, tensors_in
from deviceguard.ledger.values import Sample, gradient_of, sample_of_all, storage_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

TEACHER_SHARE = 0.5
"""A model that runs in at least this share of the training steps is a teacher or a reference, not an evaluated copy."""

MOST = 50
"""Trained models remembered at the same time."""

_Samples = tuple[Sample | None, ...]


@dataclasses.dataclass(slots=True, eq=False)
class _Trained:
    """A model that is trained. It may die before the run ends, so it is remembered as text.

    Attributes:
        subject: its name and where it was made.
        structure: names and shapes of its parameters.
        steps: optimizer steps that trained it.
        last: number of the last one, counted over all optimizers.
        used: True when it was run or saved after that.
    """

    subject: Subject
    structure: Structure
    steps: int = 0
    last: int = -1
    used: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class _Candidate:
    """A model of the same structure that was there before the first training step.

    Attributes:
        twin: the trained model.
        kin: ``copy``, ``unpickled`` or ``class``.
        sample: elements of its parameters at that time.
        in_steps: training steps of its twin in which it ran.
        ran: True when it ran since the last step.
        checked: number of the training step after which it was last found unchanged.
        finding: what to say at the end, and the step it hangs on.
    """

    twin: _Trained
    kin: str
    sample: _Samples
    in_steps: int = 0
    ran: bool = False
    checked: int = -1
    finding: tuple[int, Finding] | None = None


class UntrainedCopy(Rule):
    """After training, an object is evaluated or saved that is a copy of the trained model and was itself never trained.

    What it does:
        At the first training step it looks which other live models have the structure of the trained one: deep copies,
        the original of an unpickled model, other objects of the same class. When the training is over and one of
        them, still with the weights it had then, is run or saved, and the trained one is not, that is reported.

    Why it hurts:
        The training is fine and the reported score is that of random weights, or the saved file holds them.

    Example:
        import copy
        net = torch.nn.Linear(4, 1)
        model = copy.deepcopy(net).to("cuda")
        net = net.to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(8, 4, device="cuda")
        for _ in range(3):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        score = model(x)

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(8, 4, device="cuda")
        for _ in range(3):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        score = net(x)

    When it stays silent:
        For teachers and reference models that run in the training steps, averages, models that were loaded from a
        state dict or changed otherwise, snapshots made during the training, frozen models, baselines that are
        evaluated beside the trained model, and models whose only likeness is that of a bare PyTorch layer.

    Repair:
        None by itself: evaluate the trained object, or load its state into the copy.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/issues/747
        https://github.com/Lightning-AI/pytorch-lightning/pull/2565
        https://github.com/ray-project/ray_lightning/issues/160
    """

    code: ClassVar[str] = "CPY001"
    name: ClassVar[str] = "untrained-copy"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakIdKeyDictionary

        self._known = WeakIdKeyDictionary()  # module: _Trained, _Candidate, or None for one that is neither
        self._of: weakref.WeakKeyDictionary[Optimizer, list[_Trained]] = weakref.WeakKeyDictionary()
        self._said: list[_Candidate] = []

    @on(OptimizerStepping)
    def begin(self, event: OptimizerStepping) -> None:
        """Before a model's first training step: who else looks like it."""
        if not self.context.steps.examined or event.optimizer in self._of:
            return
        held = {id(p) for p in parameters_of(event.optimizer) if event.with_closure or gradient_of(p) is not None}
        for model, _ in self.context.ledger.models():
            inner = unwrapped(model)
            if not isinstance(self._known.get(inner), _Trained) and any(id(p) in held for p in inner.parameters()):
                self._register(inner, model)

    @on(OptimizerStepped)
    def step(self, event: OptimizerStepped) -> None:
        """Count the steps of the trained models."""
        if self.context.steps.examined or event.optimizer not in self._of:
            models = self.context.ledger.trained_by(event.optimizer)
            found = (self._known.get(unwrapped(model)) for model in models)
            self._of[event.optimizer] = [known for known in found if isinstance(known, _Trained)]
        for trained in self._of[event.optimizer]:
            trained.steps += 1
            trained.last, trained.used = self.context.ledger.optimizer_steps, False

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A trained model is used, or a copy is."""
        if not event.is_root:
            return
        known = self._role(event.module)
        if isinstance(known, _Trained):
            known.used = True
        elif known is not None:
            self._use(event.module, known, "run")

    @on(ObjectSaved)
    def saved(self, event: ObjectSaved) -> None:
        """The same for what is saved."""
        storages = {storage_of(tensor) for tensor in tensors_in(event.obj)}
        for module, known in list(self._known.items()):
            if module is None or known is None or not any(storage_of(p) in storages for p in module.parameters()):
                continue
            if isinstance(known, _Trained):
                known.used = True
            else:
                self._use(module, known, "saved")

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Speak of the copies used after the last training step of a model that was not used any more."""
        for candidate in self._said:
            twin = candidate.twin
            if candidate.finding is not None and candidate.finding[0] == twin.last and not twin.used:
                yield candidate.finding[1]

    def _register(self, model: nn.Module, root: nn.Module) -> None:
        if sum(isinstance(known, _Trained) for known in self._known.values()) >= MOST:
            return
        structure = structure_of(model)
        trained = _Trained(self.context.subjects.model(root if root is model else model), structure)
        self._known[model] = trained
        mine = sample_of_all(model.parameters())
        for other in self.context.ledger.modules():
            if type(other) is not type(model) or other is model or isinstance(self._known.get(other), _Trained):
                continue
            kin = self._kin(other, model, structure, mine)
            if kin:
                self._known[other] = _Candidate(trained, kin, sample_of_all(other.parameters()))

    def _kin(self, other: nn.Module, model: nn.Module, structure: Structure, mine: _Samples) -> str:
        ledger = self.context.ledger
        if structure_of(other) != structure or not any(p.requires_grad for p in other.parameters()):
            return ""
        if ledger.top_of(other)[0] is not other or ledger.is_trained(other) or share_parameters(other, model):
            return ""
        if ledger.module(other).loaded:
            return ""
        if are_copies(ledger, other, model):
            return "copy"
        copied = ledger.module(other).copied or ledger.module(model).copied
        if copied and None not in mine and sample_of_all(other.parameters()) == mine:
            return "unpickled"
        return "class" if is_users_class(model) else ""

    def _role(self, module: nn.Module) -> Any:
        """What a root module is: itself, by what it wraps, contains or was copied from."""
        if module in self._known:
            return self._known[module]
        inner = unwrapped(module)
        role = self._known.get(inner)
        if role is None:
            kin = [inner, *sources_of(self.context.ledger, inner)]
            for other, known in list(self._known.items()):
                if (
                    isinstance(known, _Trained)
                    and other is not None
                    and (any(other is one for one in kin) or share_parameters(inner, other))
                ):
                    role = known
        self._known[module] = role
        return role

    def _use(self, module: nn.Module, candidate: _Candidate, how: str) -> None:
        twin = candidate.twin
        candidate.ran = True
        if (
            twin.steps == 0
            or candidate.checked == twin.last
            or candidate.in_steps >= max(3, TEACHER_SHARE * twin.steps)
        ):
            return
        candidate.checked, candidate.finding = twin.last, None
        if self.context.ledger.module(unwrapped(module)).loaded or self.context.ledger.is_trained(module):
            return
        now = sample_of_all(unwrapped(module).parameters())
        if now == candidate.sample and None not in now:  # None: not to be read without running a graph
            candidate.finding = (twin.last, self._finding(module, candidate, how))
            if not any(other is candidate for other in self._said):
                self._said.append(candidate)

    def _finding(self, module: nn.Module, candidate: _Candidate, how: str) -> Finding:
        twin = candidate.twin.subject
        subject = self.context.subjects.model(module)
        kin = {"copy": "of which it is a copy", "unpickled": "an unpickled copy of it"}.get(
            candidate.kin, "another object of its class"
        )
        verb = "evaluated" if how == "run" else "saved"
        fix = f"use {twin.name} here, or load it first: {subject.name}.load_state_dict({twin.name}.state_dict())"
        if twin.name == subject.name:
            fix = f"hand the trained state back and load it here: {subject.name}.load_state_dict(trained_state)"
        return self.finding(
            f"{subject.name}{made_at(subject.made_at)} is {verb} after training, but was never trained: its weights "
            f"are those it had before the first step.\nThe {candidate.twin.steps} training steps changed {twin.name}"
            f"{made_at(twin.made_at)}, {kin}.",
            fix,
            [subject, twin],
            site=user_site(),
            key=subject.name,
        )
