"""OPT010: optimizer state loaded onto other parameters than it was saved from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import OptimizerStateLoaded, OptimizerStateTaken
from deviceguard.findings import Finding, Severity
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import Sample, sample_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

SHAPED = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "max_exp_avg_sq")
"""Entries of a parameter's state that always have its shape."""

MOST_TAKEN = 8
"""States taken that are remembered."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    """A state that ``state_dict()`` returned: names of the parameters in order, and a sample of each one's state."""

    names: tuple[str, ...]
    samples: tuple[Sample | None, ...]


class StateOrder(Rule):
    """Optimizer state is loaded onto other parameters than it was saved from.

    What it does:
        Remembers, for each ``state_dict()`` of an optimizer in this run, the names of the parameters in their order.
        When that state is loaded into an optimizer whose parameters have the same names in another order, or when
        a loaded moment has another shape than its parameter, it says so.

    Why it hurts:
        State is matched by position. Momentum and second moments of one layer are applied to another, and the resumed
        run diverges for a while, or for good.

    Example:
        first = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)}).to("cuda")
        saved = torch.optim.Adam(first.parameters())
        first["a"](first["b"](torch.ones(1, 4, device="cuda"))).sum().backward()
        saved.step()
        second = torch.nn.ModuleDict({"b": torch.nn.Linear(4, 4), "a": torch.nn.Linear(4, 4)}).to("cuda")
        resumed = torch.optim.Adam(second.parameters())
        resumed.load_state_dict(saved.state_dict())

    Use instead:
        first = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)}).to("cuda")
        saved = torch.optim.Adam(first.parameters())
        first["a"](first["b"](torch.ones(1, 4, device="cuda"))).sum().backward()
        saved.step()
        second = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)}).to("cuda")
        resumed = torch.optim.Adam(second.parameters())
        resumed.load_state_dict(saved.state_dict())

    When it stays silent:
        When the names agree in their order, or are other names altogether.

    Repair:
        None by itself.

    References:
        https://github.com/pytorch/pytorch/issues/1489
    """

    code: ClassVar[str] = "OPT010"
    name: ClassVar[str] = "state-order"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._taken: list[_Taken] = []

    @on(OptimizerStateTaken)
    def taken(self, event: OptimizerStateTaken) -> None:
        """Remember the order."""
        samples = _samples(event.state)
        if any(samples) and None not in samples:  # what cannot be read tells nothing about the order
            self._taken = [*self._taken[1 - MOST_TAKEN :], _Taken(self._names(event.optimizer), samples)]

    @on(OptimizerStateLoaded)
    def loaded(self, event: OptimizerStateLoaded) -> Iterator[Finding]:
        """Compare it."""
        held = parameters_of(event.optimizer)
        for position, parameter in enumerate(held):
            for key in SHAPED:
                value = event.optimizer.state.get(parameter, {}).get(key)
                if value is not None and hasattr(value, "shape") and value.shape != parameter.shape:
                    yield self._misshaped(event.optimizer, position, key, tuple(value.shape))
                    return
        samples, names = _samples(event.state), self._names(event.optimizer)
        for taken in reversed(self._taken):
            if taken.samples == samples:
                if sorted(taken.names) == sorted(names) and taken.names != names and len(set(names)) == len(names):
                    yield self._swapped(event.optimizer, taken.names, names)
                return

    def _names(self, optimizer: Optimizer) -> tuple[str, ...]:
        return tuple(self.context.ledger.owner_of(p)[1] for p in parameters_of(optimizer))

    def _swapped(self, optimizer: Optimizer, saved: Sequence[str], now: Sequence[str]) -> Finding:
        subject = self.context.subjects.optimizer(optimizer)
        position = next(i for i, (one, other) in enumerate(zip(saved, now, strict=True)) if one != other)
        parameter = self.context.subjects.parameter(parameters_of(optimizer)[position])
        return self.finding(
            f"{subject.name} is given the state of {saved[position]!r} for {parameter.name}: state is matched by "
            "position, and the parameters are in another order than when it was saved.",
            "build the model and the param groups in the order of the run that saved them, or save the names "
            "(Optimizer(model.named_parameters(), ...)) and sort by them before loading",
            [parameter, subject],
            key=subject.name,
        )

    def _misshaped(self, optimizer: Optimizer, position: int, key: str, shape: tuple[int, ...]) -> Finding:
        subject = self.context.subjects.optimizer(optimizer)
        parameter = self.context.subjects.parameter(parameters_of(optimizer)[position])
        return self.finding(
            f"{subject.name} is given a {key} of shape {shape} for {parameter.name} of shape {parameter.shape}: the "
            "state is that of another parameter.",
            "build the model and the param groups in the order of the run that saved them",
            [parameter, subject],
            key=subject.name,
        )


def _samples(state: Mapping[str, Any]) -> tuple[Sample | None, ...]:
    """A few numbers of the state of each parameter, in the order of the groups.

    Empty for a parameter without state, None for state that cannot be read.
    """
    order = [key for group in state.get("param_groups", ()) for key in group.get("params", ())]
    found: list[Sample | None] = []
    for key in order[:256]:
        entry = state.get("state", {}).get(key, {})
        value = next((entry[name] for name in SHAPED if name in entry), None) if isinstance(entry, Mapping) else None
        found.append(sample_of(value, 8) if value is not None and hasattr(value, "layout") else ())
    return tuple(found)
