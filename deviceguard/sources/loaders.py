"""Data loaders: which batches they give, and how long the program waits for each."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as module

from deviceguard.events import BatchFetched, Event, LoaderFailed, LoaderStarted
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_Iterator = module._BaseDataLoaderIter
_LOADER = "_deviceguard_loader"


class Loaders(Source):
    """Emits for each iteration over a ``DataLoader`` and for each batch."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({LoaderStarted, BatchFetched, LoaderFailed})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(DataLoader, "__iter__", self._started)
        self._patches.replace(_Iterator, "__next__", self._next)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _started(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            iterator = original(loader)
            if isinstance(iterator, _Iterator):
                setattr(iterator, _LOADER, weakref.ref(loader))
            if LoaderStarted in self.wanted:
                self.emit(LoaderStarted(loader))
            return iterator

        return __iter__

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
            loader = _loader_of(iterator)
            if loader is not None and BatchFetched in self.wanted:
                self.emit(BatchFetched(loader, batch, seconds))
            return batch

        return __next__

    def _failed(self, iterator: Any, error: Exception) -> None:
        loader = _loader_of(iterator)
        if loader is not None and LoaderFailed in self.wanted:
            self.emit(LoaderFailed(loader, error))


def _loader_of(iterator: Any) -> Any:
    reference = getattr(iterator, _LOADER, None)
    return reference() if reference is not None else None
