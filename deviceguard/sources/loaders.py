"""Data loaders: which batches they give, and how long the program waits for each."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as module
from torch.utils.weak import WeakIdKeyDictionary

from deviceguard.events import BatchFetched, Event, LoaderFacts, LoaderFailed, LoaderStarted
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_Iterator = module._BaseDataLoaderIter
_NOTE = "_deviceguard_loader"
"""On an iterator: a weak reference to its loader, and the facts. The iterator does not keep its loader."""


class Loaders(Source):
    """Emits for each iteration over a ``DataLoader`` and for each batch, in the process that iterates."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({LoaderStarted, BatchFetched, LoaderFailed})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._facts: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._numbers = itertools.count()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(DataLoader, "__iter__", self._started)
        self._patches.replace(_Iterator, "__next__", self._next)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _started(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            iterator = original(loader)
            self.tell(LoaderStarted, lambda: self._note(loader, iterator))
            return iterator

        return __iter__

    def _note(self, loader: Any, iterator: Any) -> LoaderStarted:
        facts = self._facts.get(loader)
        if facts is None:
            facts = self._facts[loader] = _facts_of(loader, next(self._numbers))
        if isinstance(iterator, _Iterator):
            setattr(iterator, _NOTE, (weakref.ref(loader), facts))
        return LoaderStarted(loader, facts)

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:  # noqa: N807
            start = perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                raise
            except Exception as error:
                self._failed(iterator, error)
                raise
            seconds = perf_counter() - start
            note = getattr(iterator, _NOTE, None)
            if note is not None:
                self.tell(BatchFetched, lambda: BatchFetched(note[0](), note[1], batch, seconds))
            return batch

        return __next__

    def _failed(self, iterator: Any, error: Exception) -> None:
        note = getattr(iterator, _NOTE, None)
        if note is not None:
            self.tell(LoaderFailed, lambda: LoaderFailed(note[1], error))


def _facts_of(loader: Any, number: int) -> LoaderFacts:
    context = loader.multiprocessing_context
    method = context.get_start_method() if context is not None else None
    return LoaderFacts(
        number=number,
        workers=int(loader.num_workers),
        pins=bool(loader.pin_memory),
        batch_size=loader.batch_size,
        dataset=type(loader.dataset).__name__,
        forks=method in (None, "fork"),
    )
