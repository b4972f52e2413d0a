"""How long the program waits for each loader, measured at its own calls."""

from __future__ import annotations

import dataclasses
from time import perf_counter
from typing import TYPE_CHECKING, Any

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import BatchFetched, LoaderFacts, LoaderStarted
from deviceguard.findings import Site
from deviceguard.naming.attribution import charge
from deviceguard.naming.frames import site_of
from deviceguard.rules.syn.memory import tensors_in

if TYPE_CHECKING:
    import torch

_WARM_UP = 2
"""Batches at the start that are not judged: workers start, caches fill."""


@dataclasses.dataclass(slots=True)
class Wait:
    """One loop over a loader.

    Attributes:
        facts: the loader.
        site: the loop.
        batches: number of batches after the warm-up.
        waited: seconds spent waiting for them.
        spent: seconds from the end of the warm-up to the latest batch.
        rows: size of the first dimension of the latest batch.
        elements: number of elements in it.
        nbytes: its size in bytes.
        on_device: True where batches come from an accelerator already.
    """

    facts: LoaderFacts
    site: Site | None
    batches: int = 0
    waited: float = 0.0
    spent: float = 0.0
    rows: int = 0
    elements: int = 0
    nbytes: int = 0
    on_device: bool = False
    seen: int = 0
    since: float = 0.0

    @property
    def share(self) -> float:
        """Share of the time that is spent waiting."""
        return self.waited / self.spent if self.spent > 0 else 0.0

    @property
    def each(self) -> float:
        """Seconds for one batch."""
        return self.waited / self.batches if self.batches else 0.0


class Waiting:
    """The loops over loaders in this run."""

    def __init__(self) -> None:
        self._loops: dict[Any, Wait] = {}
        self._running: dict[int, Wait] = {}

    def started(self, event: LoaderStarted) -> None:
        """A loop begins; a loop that was run before goes on where it stood."""
        charged = charge()
        site = site_of(charged.frame, via=charged.via) if charged is not None else None
        key = (site.file, site.line) if site is not None else event.facts.number
        loop = self._loops.get(key)
        if loop is None or dataclasses.replace(loop.facts, number=0) != dataclasses.replace(event.facts, number=0):
            loop = self._loops[key] = Wait(event.facts, site)
        loop.since = 0.0
        self._running[event.facts.number] = loop

    def fetched(self, event: BatchFetched) -> Wait | None:
        """A batch came; the loop it belongs to."""
        loop = self._running.get(event.facts.number)
        if loop is None:
            return None
        now = perf_counter()
        loop.seen += 1
        if loop.seen > _WARM_UP and loop.since:
            loop.batches += 1
            loop.waited += event.seconds
            loop.spent += now - loop.since
        loop.since = now
        if loop.seen <= 4 or loop.seen % 64 == 0:
            _measure(loop, event.batch)
        return loop

    def all(self) -> list[Wait]:
        """Every loop."""
        return list(self._loops.values())


def _measure(loop: Wait, batch: Any) -> None:
    tensors: list[torch.Tensor] = list(tensors_in(batch))
    if not tensors:
        return
    loop.rows = max((int(tensor.shape[0]) for tensor in tensors if tensor.dim()), default=1)
    loop.elements = sum(tensor.numel() for tensor in tensors)
    loop.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    loop.on_device = all(is_accelerator(tensor.device) for tensor in tensors)
