"""Wrappers that keep replicas: ``DistributedDataParallel``, ``DataParallel``, and the replicas of the latter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn
from torch.nn import parallel

from deviceguard.events import Event, ReplicaMade, ReplicasWrapped
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class Parallel(Source):
    """Emits when a model is wrapped, and when ``DataParallel`` makes a replica for one forward pass."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ReplicaMade, ReplicasWrapped})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        reduces = parallel.DistributedDataParallel
        self._patches.replace(reduces, "__init__", lambda original: self._wrap(original, reduces=True))
        self._patches.replace(parallel.DataParallel, "__init__", lambda original: self._wrap(original, reduces=False))
        self._patches.replace(nn.Module, "_replicate_for_data_parallel", self._replicate)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _wrap(self, original: Callable[..., None], reduces: bool) -> Callable[..., None]:
        def construct(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            self.tell(ReplicasWrapped, lambda: ReplicasWrapped(wrapper, wrapper.module, reduces))

        return construct

    def _replicate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replicate(module: nn.Module) -> Any:
            replica = original(module)
            self.tell(ReplicaMade, lambda: ReplicaMade(module, replica))
            return replica

        return replicate
