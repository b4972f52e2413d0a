"""Wrappers that keep replicas: ``DistributedDataParallel``, ``DataParallel``, and the replicas of the latter."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch.distributed as dist
from torch import nn
from torch._utils import ExceptionWrapper
from torch.nn import parallel

from deviceguard.events import CallFailed, Event, ReplicaMade, ReplicasWrapped
from deviceguard.sources.patching import Patches
from deviceguard.sources.post_mortem import CARRIED
from deviceguard.sources.refusals import problem_of
from deviceguard.sources.source import Emit, Source


class Parallel(Source):
    """Emits when a model is wrapped, and when ``DataParallel`` makes a replica for one forward pass.

    Keeps with what ``DataParallel`` carries out of a replica's thread the refusal itself, from whose frames it can be
    explained; nothing is done while no replica fails.
    """

    provides: ClassVar[frozenset[type[Event]]] = frozenset({CallFailed, ReplicaMade, ReplicasWrapped})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        reduces = parallel.DistributedDataParallel
        self._patches.replace(reduces, "__init__", lambda original: self._wrap(original, reduces=True))
        self._patches.replace(parallel.DataParallel, "__init__", lambda original: self._wrap(original, reduces=False))
        self._patches.replace(nn.Module, "_replicate_for_data_parallel", self._replicate)
        self._patches.replace(ExceptionWrapper, "__init__", self._carry)
        if dist.is_available():
            self._patches.replace(dist, "destroy_process_group", _after_a_moment)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _wrap(self, original: Callable[..., None], reduces: bool) -> Callable[..., None]:
        def construct(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            self.tell(ReplicasWrapped, lambda: ReplicasWrapped(wrapper, wrapper.module, reduces))

        return construct

    def _carry(self, original: Callable[..., None]) -> Callable[..., None]:
        def construct(wrapper: Any, exc_info: Any = None, where: str = "in background") -> None:
            given = sys.exc_info() if exc_info is None else exc_info
            original(wrapper, given, where)
            error = given[1]
            if error is not None and where.startswith("in replica") and problem_of(error) != "other":
                vars(wrapper)[CARRIED] = error

        return construct

    def _replicate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replicate(module: nn.Module) -> Any:
            replica = original(module)
            self.tell(ReplicaMade, lambda: ReplicaMade(module, replica))
            return replica

        return replicate


_A_MOMENT = 0.02
"""Seconds."""


def _after_a_moment(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the threads of a process group finish before it is destroyed.

    A collective's work keeps the function modes that were on when it began, and its thread needs the interpreter to let
    go of them. Where a reducer drops the last reference to the group just then, PyTorch waits for that thread without
    letting the interpreter go, for ever.
    """

    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        time.sleep(_A_MOMENT)
        return original(*args, **kwargs)

    return destroy_process_group
