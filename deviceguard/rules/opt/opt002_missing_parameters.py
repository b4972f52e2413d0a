"""OPT002: trainable parameters that receive gradients and are in no optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.lineage import stale_pairs
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import Sample, gradient_of, readable, sample_of, versions_of
from deviceguard.naming.phrases import listed, made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.weak import TensorWeakRef

PATIENCE = 100
"""Steps after which parameters of an ordinary model are reported although some later optimizer might take them."""


@dataclasses.dataclass(slots=True)
class _Candidate:
    """A parameter that had a gradient and no owner.

    Attributes:
        since: step in which it was first seen so.
        last: step in which it was last seen so.
        sample: elements read then; a hand-written update changes them. None where they cannot be read.
        version: its version counter then.
    """

    since: int
    last: int
    sample: Sample | None
    version: tuple[int, ...]


class MissingParameters(Rule):
    """Trainable parameters receive gradients, and no optimizer owns them.

    What it does:
        Compares the parameters of every module that ran in training mode with those of all live optimizers. Modules
        in plain lists and loss modules with weights of their own count too. A parameter is reported when step after
        step it has a gradient, belongs to no optimizer, and keeps its value.

    Why it hurts:
        Part of the network stays at its random initial weights. The rest learns around it, so the loss goes down and
        nobody looks.

    Example:
        model = torch.nn.Linear(6, 4).to("cuda")
        head = torch.nn.Linear(4, 3).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            head(model(torch.ones(8, 6, device="cuda"))).sum().backward()
            optimizer.step()

    Use instead:
        model = torch.nn.Linear(6, 4).to("cuda")
        head = torch.nn.Linear(4, 3).to("cuda")
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            head(model(torch.ones(8, 6, device="cuda"))).sum().backward()
            optimizer.step()

    When it stays silent:
        For an optimizer of inputs alone, modules in eval mode, frozen parameters, gradients that ``autograd.grad``
        returns, parameters that change by another hand (hand-written updates, optimizers of other libraries), workers
        and master copies whose gradients are handed on, and parameters that a later optimizer takes.

    Repair:
        None by itself: whether the parameters are to be trained or frozen is the author's choice.

    References:
        https://github.com/pytorch/pytorch/issues/21905
        https://github.com/ifzhang/FairMOT/issues/223
        https://github.com/facebookresearch/detectron2/issues/2486
    """

    code: ClassVar[str] = "OPT002"
    name: ClassVar[str] = "missing-parameters"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakTensorKeyDictionary

        self._seen = WeakTensorKeyDictionary()
        self._kept: dict[str, tuple[Finding, list[TensorWeakRef]]] = {}
        self._told: set[str] = set()

    @on(OptimizerStepping)
    def check(self, event: OptimizerStepping) -> Iterator[Finding]:
        """Look for parameters with gradients and no owner."""
        steps = self.context.steps
        if not steps.examined or event.with_closure or not self._trains_modules(event.optimizer):
            return
        found = [p for p in self.context.ledger.unowned_with_gradient() if self._counts(p, event.optimizer)]
        if not found:
            return
        confirmed = [p for p in found if self._is_confirmed(p)]
        explained = {id(pair.live) for pair in stale_pairs(self.context.ledger, event.optimizer, found)}
        confirmed = [p for p in confirmed if id(p) not in explained]
        if not confirmed:
            return
        from torch.utils.weak import TensorWeakRef

        self.context.ledger.search_heap_for_optimizers()
        owned = self.context.ledger.owned()
        for group in self._by_model([p for p in confirmed if id(p) not in owned]):
            finding = self._finding(group, event.optimizer)
            if finding.key not in self._told and self._is_urgent(group):
                self._told.add(finding.key)
                yield finding
            self._kept[finding.key] = (finding, [TensorWeakRef(p) for p in group])

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """What no later optimizer has taken."""
        self.context.ledger.search_heap_for_optimizers()
        owned = self.context.ledger.owned()
        for key, (finding, references) in self._kept.items():
            alive = [p for p in (reference() for reference in references) if p is not None]
            if key not in self._told and not any(id(p) in owned or _changed(p, self._seen[p]) for p in alive):
                yield finding

    def _trains_modules(self, optimizer: Optimizer) -> bool:
        """False where an input is what is optimized: a latent, a picture, a perturbation; the model is only passed."""
        ledger = self.context.ledger
        return any(ledger.parameter(p).owner is not None for p in parameters_of(optimizer))

    def _counts(self, parameter: torch.Tensor, optimizer: Optimizer) -> bool:
        """True for a parameter that ran in training mode, was in no optimizer before, and is nobody's worker."""
        ledger = self.context.ledger
        record = ledger.parameter(parameter)
        if record.trained or not record.ran_training:
            return False
        fed = [o for o, record in ledger.optimizers() if record.fed]
        return not any(p.shape == parameter.shape for o in fed for group in o.param_groups for p in group["params"])

    def _is_confirmed(self, parameter: torch.Tensor) -> bool:
        """Seen like this in an earlier step, with the same value and with gradients that are not all zero."""
        now = self.context.steps.index
        known = self._seen.get(parameter)
        if known is None or _changed(parameter, known):
            self._seen[parameter] = _Candidate(now, now, sample_of(parameter), versions_of([parameter]))
            return False
        known.last = now
        gradient = gradient_of(parameter)
        return now > known.since and gradient is not None and (not readable(gradient) or bool(gradient.any()))

    def _is_urgent(self, group: Sequence[torch.Tensor]) -> bool:
        """True where no later optimizer is likely: a layer that is registered nowhere, or after many steps."""
        waited = self.context.steps.index - min(self._seen[p].since for p in group)
        return waited >= PATIENCE or self._stray(group[0]) is not None

    def _stray(self, parameter: torch.Tensor) -> nn.Module | None:
        """The unregistered module a parameter belongs to."""
        top, _ = self.context.ledger.owner_of(parameter)
        record = self.context.ledger.module(top) if top is not None else None
        return top if record is not None and record.parent is not None and record.holder is None else None

    def _by_model(self, parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        groups: dict[int, list[torch.Tensor]] = {}
        for parameter in parameters:
            top, _ = self.context.ledger.owner_of(parameter)
            stray = self._stray(parameter)
            record = self.context.ledger.module(stray) if stray is not None else None
            parent = record.parent() if record is not None and record.parent is not None else None
            groups.setdefault(id(parent if parent is not None else top), []).append(parameter)
        return list(groups.values())

    def _finding(self, group: Sequence[torch.Tensor], optimizer: Optimizer) -> Finding:
        subjects = [self.context.subjects.parameter(p) for p in group]
        names = [subject.name for subject in subjects]
        subject = self.context.subjects.optimizer(optimizer)
        stray = self._stray(group[0])
        many = len(names) > 1
        what, site = self._what(names, subject, stray), self._site(stray, optimizer)
        return self.finding(
            f"{listed(names)} {'get gradients and are' if many else 'gets gradients and is'} in no optimizer: "
            f"{subject.name}{made_at(subject.made_at)} does not hold {'them' if many else 'it'}.\n{what[0]}",
            what[1],
            [*subjects[:3], subject],
            site=site,
            key=names[0],
            first_step=min(self._seen[p].since for p in group),
            last_step=self.context.steps.index,
        )

    def _what(self, names: Sequence[str], optimizer: Subject, stray: nn.Module | None) -> tuple[str, str]:
        """The reason and the edit."""
        if stray is not None:
            holder = names[0].rpartition(".")[0].partition("[")[0]
            return (
                "The layer is kept in a plain container, so parameters(), state_dict() and .to() do not know it.",
                f"register it: {holder} = nn.ModuleList(...) (or nn.ModuleDict) in __init__",
            )
        model = names[0].partition(".")[0].partition("[")[0]
        return (
            "They keep the values they were made with, while the rest is trained around them.",
            f"give them to the optimizer: {optimizer.name}.add_param_group({{'params': [...]}}), or build it over "
            f"{model}.parameters() too; freeze them with requires_grad_(False) if they are not to be trained",
        )

    def _site(self, stray: nn.Module | None, optimizer: Optimizer) -> Site | None:
        if stray is not None:
            return self.context.ledger.module(stray).made_at
        return self.context.ledger.optimizer(optimizer).made_at


def _changed(parameter: torch.Tensor, known: _Candidate) -> bool:
    """True when it was written to; by its version counter alone where its elements cannot be read."""
    if versions_of([parameter]) != known.version:
        return True
    now = sample_of(parameter)
    return now is not None and known.sample is not None and now != known.sample
