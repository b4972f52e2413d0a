"""CPY005: averaged weights are swapped in for an evaluation, and training goes on from them."""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import AverageUpdated, ModuleCalled, ModuleCopied, OptimizerStepped, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.averages import Averages
from deviceguard.ledger.families import unwrapped
from deviceguard.ledger.values import sample_of_all, storage_of, versions_of
from deviceguard.naming.frames import user_frame, user_site
from deviceguard.naming.holdings import held_values
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

AVERAGE = re.compile(r"(?:^|[_.])(ema|avg|average|averaged|shadow|swa|polyak|mean|smoothed)", re.I)
"""Names of dictionaries and lists that hold an average."""

ENOUGH = 2
"""Evaluations after which it is reported at once; one is enough at the end of a run."""


@dataclasses.dataclass(slots=True)
class _Swapped:
    """A trained model.

    Attributes:
        stepped: version counters and memory of its first parameters after its last step.
        holds: elements of the average it was evaluated with since; None while it was not.
        average: name of that average.
        site: the line of that evaluation.
        steps: steps that began with it.
        after: elements after the last step, kept where writes past autograd are to be seen too; else empty.
        subject: the model, as text.
    """

    stepped: tuple[Any, ...] = ()
    holds: tuple[Any, ...] | None = None
    average: str = ""
    site: Site | None = None
    steps: int = 0
    subject: Subject | None = None
    told: bool = False
    after: tuple[Any, ...] = ()


class SwapNotRestored(Rule):
    """Averaged weights are put into the model for an evaluation and left there, so that training goes on from them.

    What it does:
        When a trained model is evaluated it looks whether its weights were replaced since the last step by those of an
        average. If the next training step begins with them, the raw weights were not put back.

    Why it hurts:
        Every evaluation throws the progress since the last average away.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        ema = {k: v.clone() for k, v in net.state_dict().items()}
        x = torch.ones(8, 4, device="cuda")
        for epoch in range(3):
            for _ in range(3):
                optimizer.zero_grad()
                net(x).pow(2).mean().backward()
                optimizer.step()
                for k, v in net.state_dict().items():
                    ema[k].lerp_(v, 0.1)
            net.load_state_dict(ema)
            with torch.no_grad():
                score = net(x)

    Use instead:
        import copy
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        ema = {k: v.clone() for k, v in net.state_dict().items()}
        x = torch.ones(8, 4, device="cuda")
        for epoch in range(3):
            for _ in range(3):
                optimizer.zero_grad()
                net(x).pow(2).mean().backward()
                optimizer.step()
                for k, v in net.state_dict().items():
                    ema[k].lerp_(v, 0.1)
            raw = copy.deepcopy(net.state_dict())
            net.load_state_dict(ema)
            with torch.no_grad():
                score = net(x)
            net.load_state_dict(raw)

    When it stays silent:
        When the weights are put back, when the average is only evaluated at the end, for averages that are loaded
        without an evaluation (federated rounds), and for a best checkpoint that is loaded again on purpose.

    Repair:
        None by itself.

    References:
        https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186
        https://github.com/huggingface/diffusers/issues/7549
        https://github.com/harubaru/waifu-diffusion/pull/31
    """

    code: ClassVar[str] = "CPY005"
    name: ClassVar[str] = "swap-not-restored"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._averages = Averages(self.context.ledger)
        self._models: weakref.WeakKeyDictionary[nn.Module, _Swapped] = weakref.WeakKeyDictionary()
        self._all: list[_Swapped] = []
        self._torch_averages: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._named = False

    @on(ModuleCopied)
    def copied(self, event: ModuleCopied) -> None:
        """A copy may become an average."""
        if event.source is not None:
            self._averages.add(event.copy)

    @on(AverageUpdated)
    def updated(self, event: AverageUpdated) -> None:
        """PyTorch's own averages."""
        self._torch_averages.add(event.average)

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Remember what the step has written."""
        if self.context.steps.examined:
            self._averages.look()
        for model in self.context.ledger.trained_by(event.optimizer):
            inner = unwrapped(model)
            known = self._models.get(inner)
            if known is None:
                known = self._models[inner] = _Swapped()
                self._all = [*self._all[-50:], known]
            known.stepped, known.holds = _state(inner), None
            known.after = sample_of_all(inner.parameters()) if self._named and self.context.steps.examined else ()

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """An evaluation: with whose weights?"""
        if not event.is_root or not self._models:
            return
        import torch

        if event.module.training and torch.is_grad_enabled():
            return
        module = unwrapped(event.module)
        known = self._models.get(module)
        if known is None or known.holds is not None or known.told:
            return
        if known.stepped == _state(module) and not self._may_differ(known):
            return
        mine = sample_of_all(module.parameters())
        if mine == known.after:
            return
        name = self._average_like(module, mine) if None not in mine else ""  # not readable: not known to be equal
        if name:
            known.holds, known.average, known.site = mine, name, user_site()
            known.subject = self.context.subjects.model(module)

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """Does training go on from the average?"""
        for model in self.context.ledger.trained_by(event.optimizer):
            inner = unwrapped(model)
            known = self._models.get(inner)
            if known is None or known.holds is None:
                continue
            if sample_of_all(inner.parameters()) == known.holds:
                known.steps += 1
                if known.steps >= ENOUGH and not known.told:
                    known.told = True
                    yield self._finding(known)
            known.holds = None

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Short runs."""
        for known in self._all:
            if known.steps and not known.told:
                yield self._finding(known)

    def _may_differ(self, known: _Swapped) -> bool:
        """True when weights without a mark of a write may still be others: ``p.data.copy_()`` leaves none.

        They are read after the steps, for the comparison, once there is a variable that is called an average.
        """
        if not self._named and self.context.steps.examined:
            self._named = any(AVERAGE.search(name) for _, name, _ in held_values(user_frame()))
        return bool(known.after)

    def _average_like(self, module: nn.Module, mine: tuple[Any, ...]) -> str:
        """Name of an average that has these weights."""
        modules = [average for average, source, _ in self._averages.averages() if source is module]
        modules += [unwrapped(average) for average in self._torch_averages]
        for average in modules:
            if average is not module and sample_of_all(average.parameters()) == mine:
                return self.context.subjects.model_name(average)
        own = [name for name, _ in module.named_parameters()]
        for _, name, value in held_values(user_frame()):
            if AVERAGE.search(name) and sample_of_all(_tensors_of(value, own)) == mine:
                return name
        return ""

    def _finding(self, known: _Swapped) -> Finding:
        name = known.subject.name if known.subject else "the model"
        return self.finding(
            f"{name} is evaluated with the weights of {known.average}, and the next training step starts from them: "
            "the raw weights are not put back.",
            f"keep a copy of {name}.state_dict() before the swap and load it after the evaluation, or evaluate "
            f"{known.average} as a model of its own",
            [known.subject] if known.subject else [],
            site=known.site,
            count=known.steps,
            key=name,
        )


def _state(module: nn.Module) -> tuple[Any, ...]:
    """Cheap marks of the first parameters: they change with every write that autograd sees and every swap of memory."""
    first = [p for _, p in zip(range(2), module.parameters(), strict=False)]
    return (*versions_of(first), *(storage_of(p) for p in first))


def _tensors_of(value: Any, names: list[str]) -> list[torch.Tensor]:
    """The tensors of a dictionary or list (or of an object that keeps one), in the order of the model's parameters."""
    for inner in (value, *(getattr(value, key, None) for key in ("shadow", "shadow_params", "averaged_params"))):
        if isinstance(inner, dict) and names and all(name in inner for name in names):
            return [inner[name] for name in names]
        if isinstance(inner, list) and len(inner) == len(names) and all(hasattr(item, "layout") for item in inner):
            return list(inner)
    return []
