"""Averaged copies: modules that are updated step by step from a trained model, and stepped by no optimizer."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING

from deviceguard.ledger.families import share_parameters, sources_of, unwrapped
from deviceguard.ledger.values import Sample, sample_of_all, versions_of

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.ledger.ledger import Ledger

ENOUGH = 3
"""Changes by another hand than an optimizer's that make a copy an average."""


@dataclasses.dataclass(slots=True)
class Average:
    """A copy of a trained model that may be an average of it.

    Attributes:
        source: the trained model.
        version: version counters of its parameters when last looked at.
        first: elements of its parameters when first looked at.
        changes: how often they were found changed.
    """

    source: weakref.ref[nn.Module]
    version: tuple[int, ...]
    first: tuple[Sample | None, ...]
    changes: int = 0


class Averages:
    """Looks at the copies of trained models, on examined steps only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._known: weakref.WeakKeyDictionary[nn.Module, Average] = weakref.WeakKeyDictionary()

    def add(self, copy: nn.Module) -> None:
        """Take note of a copied module; its parts are sorted out later."""
        self._copies.add(copy)

    def look(self) -> None:
        """Count the changes of the known copies, and find new ones."""
        for module in list(self._copies):
            if module not in self._known:
                self._sort(module)
        for module, average in list(self._known.items()):
            now = versions_of(module.parameters())
            average.changes += now != average.version
            average.version = now

    def averages(self) -> list[tuple[nn.Module, nn.Module, Average]]:
        """(average, trained model, what is known) of the copies that are averages."""
        found = []
        for module, average in list(self._known.items()):
            source = average.source()
            if source is not None and average.changes >= ENOUGH and not self._ledger.module(module).loaded:
                found.append((module, source, average))
        return found

    def _sort(self, module: nn.Module) -> None:
        from torch.optim.swa_utils import AveragedModel

        top, _ = self._ledger.top_of(module)
        holder = self._ledger.module(top).holder
        wrapper = holder() if holder is not None else None
        if top is not module or isinstance(wrapper, AveragedModel) or next(module.parameters(), None) is None:
            self._copies.discard(module)
            return
        source = next((s for s in sources_of(self._ledger, module) if self._ledger.is_trained(s)), None)
        if self._ledger.is_trained(module) or source is None or share_parameters(module, source):
            return
        parameters = list(module.parameters())
        self._known[module] = Average(
            weakref.ref(unwrapped(source)), versions_of(parameters), sample_of_all(parameters)
        )
