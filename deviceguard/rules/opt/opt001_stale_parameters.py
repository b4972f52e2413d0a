"""OPT001: an optimizer that holds other parameters than those of the model that is run."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import Event, GradientsUnscaling, OptimizerStepped, OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.ledger.lineage import Stale, stale_pairs
from deviceguard.ledger.values import gradient_of, versions_of
from deviceguard.naming.phrases import listed, made_at
from deviceguard.remedies import Rebind, Remedy, TakeOver
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer


class StaleParameters(Rule):
    """The optimizer holds parameters that are not those of the model being run.

    What it does:
        At ``step()`` it looks for parameters of the optimizer that no gradient has reached, while parameters which
        took their place (through a move that made new ones, ``load_state_dict(assign=True)``, a new head, a copy, a
        wrapper) have gradients and are in no optimizer.

    Why it hurts:
        The loss is computed, nothing raises, and no weight of the model ever changes. On XLA every ``model.to(device)``
        after the optimizer was built leads there.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.load_state_dict({"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}, assign=True)
        net.to("cuda")
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(4, 1)
        net.load_state_dict({"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}, assign=True)
        net.to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    When it stays silent:
        When gradients reach the optimizer's parameters in another way (master copies, workers that hand over their
        gradients, hand-written ``.grad``), when any live optimizer holds the parameters that have gradients, and when
        they are updated by hand.

    Repair:
        The optimizer's groups are given the live parameters in place of those they replaced, and keep their state.

    References:
        https://github.com/pytorch/xla/issues/1623
        https://github.com/pytorch/xla/issues/6861
        https://github.com/skorch-dev/skorch/issues/317
        https://github.com/microsoft/nni/issues/4521
        https://github.com/huggingface/accelerate/issues/3256
    """

    code: ClassVar[str] = "OPT001"
    name: ClassVar[str] = "stale-parameters"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._suspects: weakref.WeakKeyDictionary[Optimizer, tuple[int, ...]] = weakref.WeakKeyDictionary()
        self._later: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._unscaled: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @on(GradientsUnscaling)
    def before_unscaling(self, event: GradientsUnscaling) -> Iterator[Finding]:
        """With a gradient scaler it has to be said here: the scaler itself dies of an optimizer without gradients."""
        if self.context.steps.examined:
            self._unscaled.add(event.optimizer)
            yield from self._judge(event.optimizer)

    @on(OptimizerStepping)
    def before_step(self, event: OptimizerStepping) -> Iterator[Finding]:
        """The first guilty step, before it runs."""
        if not self.context.steps.examined:
            return
        if event.optimizer in self._unscaled:
            self._unscaled.discard(event.optimizer)
        elif event.with_closure:
            self._later.add(event.optimizer)  # the closure computes the gradients
        else:
            yield from self._judge(event.optimizer)

    @on(OptimizerStepped)
    def after_step(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A step that computed its gradients itself."""
        if event.optimizer in self._later:
            self._later.discard(event.optimizer)
            yield from self._judge(event.optimizer)

    def remedy(self, event: Event) -> Remedy | None:
        """Before the step the optimizer is given the live parameters."""
        if not isinstance(event, OptimizerStepping | GradientsUnscaling):
            return None
        unowned = self.context.ledger.unowned_with_gradient()
        pairs = stale_pairs(self.context.ledger, event.optimizer, unowned)
        if any(self._has_two_ways(pair) for pair in pairs):
            return None
        if pairs:
            return Rebind(event.optimizer, [(pair.held, pair.live) for pair in pairs])
        return TakeOver(event.optimizer, unowned)

    def _has_two_ways(self, pair: Stale) -> bool:
        """True where the held parameter belongs to a model that lives: perhaps that one was to be run."""
        return pair.relation in ("copied", "shape") and self.context.ledger.owner_of(pair.held)[0] is not None

    def _judge(self, optimizer: Optimizer) -> Iterator[Finding]:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        idle = [p for p in held if p.is_leaf and gradient_of(p) is None]
        if not idle and not self.context.ledger.replacements:
            return
        if not self.context.ledger.unowned_with_gradient():
            return
        self.context.ledger.search_heap_for_optimizers()
        unowned = self.context.ledger.unowned_with_gradient()
        pairs = stale_pairs(self.context.ledger, optimizer, unowned) if unowned else []
        if pairs:
            yield self._replaced(optimizer, held, pairs)
        elif unowned and len(idle) == len(held) and self._is_certain(optimizer, idle, unowned):
            yield self._taken_over(optimizer, held, unowned)

    def _is_certain(self, optimizer: Optimizer, idle: Sequence[torch.Tensor], unowned: Sequence[torch.Tensor]) -> bool:
        """At once where a wrapper took over all elements; else at the second step in which nobody updates them."""
        size = sum(p.numel() for p in idle)
        if size in (sum(p.numel() for p in unowned), *(p.numel() for p in unowned if p.numel() > 1)):
            return True
        before, now = self._suspects.get(optimizer), versions_of(unowned)
        self._suspects[optimizer] = now
        return before == now

    def _replaced(self, optimizer: Optimizer, held: Sequence[torch.Tensor], pairs: Sequence[Stale]) -> Finding:
        subjects = self.context.subjects
        names = [subjects.parameter_name(pair.live) for pair in pairs]
        subject = subjects.optimizer(optimizer)
        share = "none of its parameters" if len(pairs) == len(held) else f"{len(pairs)} of its parameters do not"
        return self.finding(
            f"{subject.name} steps, but {share} belong to the model that is run: {self._how(pairs[0])}\n"
            f"{listed(names)} {'get' if len(names) > 1 else 'gets'} the gradients and "
            f"{'are' if len(names) > 1 else 'is'} in no optimizer, so {'they are' if len(names) > 1 else 'it is'} "
            "never trained.",
            self._fix(optimizer, pairs[0].live, subject.name),
            [*(subjects.parameter(pair.live) for pair in pairs[:3]), subject],
            key=subject.name,
        )

    def _how(self, pair: Stale) -> str:
        ledger, subjects = self.context.ledger, self.context.subjects
        line = made_at(ledger.parameter(pair.live).made_at).replace("(made in ", "").rstrip(")")
        if pair.relation == "converted":
            return f"the move or conversion in{line} made new parameters, and it holds the old ones."
        if pair.relation == "loaded":
            return (
                f"load_state_dict(assign=True) in{line} put new parameters into the model, and it holds the old ones."
            )
        if pair.relation == "replaced":
            return f"it holds the former {ledger.former_name(pair.held)}, whose place was taken in{line}."
        copy = made_at(ledger.parameter(pair.held).made_at)
        if ledger.owner_of(pair.held)[0] is None:
            older = next((p for _, p in ledger.ancestry(pair.held) if ledger.owner_of(p)[0] is not None), None)
            name = subjects.parameter_name(older) if older is not None else "a parameter"
            return f"it holds a copy of {name}{copy} that is part of no model."
        kin = "another copy of the model" if pair.relation == "copied" else "another model"
        return f"it holds {subjects.parameter_name(pair.held)}{copy}, of {kin}, which gets no gradients."

    def _taken_over(self, optimizer: Optimizer, held: Sequence[torch.Tensor], live: Sequence[torch.Tensor]) -> Finding:
        subjects = self.context.subjects
        subject = subjects.optimizer(optimizer)
        names = [subjects.parameter_name(p) for p in live]
        frozen = not any(p.requires_grad for p in held)
        cause = (
            f"those {subject.name} holds are frozen"
            if frozen
            else "made after it, by a wrapper or an injected layer, or left out"
        )
        return self.finding(
            f"{subject.name} steps, but not one of its {len(held)} parameters has a gradient.\n"
            f"The model that is run trains {listed(names)}, which "
            f"{'are' if len(names) > 1 else 'is'} in no optimizer: {cause}.",
            self._fix(optimizer, live[0], subject.name),
            [*(subjects.parameter(p) for p in live[:3]), subject],
            key=subject.name,
        )

    def _fix(self, optimizer: Optimizer, live: torch.Tensor, name: str) -> str:
        owner, _ = self.context.ledger.owner_of(live)
        model = self.context.subjects.model_name(owner) if owner is not None else "model"
        line = made_at(self.context.ledger.optimizer(optimizer).made_at)
        return (
            f"build {name}{line} over the parameters of the model you run, after the last move, load, wrap or surgery: "
            f"{type(optimizer).__name__}({model}.parameters(), ...)"
        )
