"""Steps of learning rate schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch.optim import lr_scheduler

from deviceguard.events import Event, SchedulerStepped
from deviceguard.sources.patching import Depth, Patches
from deviceguard.sources.source import Emit, Source


class Schedulers(Source):
    """Emits after the outermost ``step()`` of a scheduler that the program calls."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({SchedulerStepped})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._stepping = Depth()

    def install(self) -> None:  # noqa: D102
        for cls in vars(lr_scheduler).values():
            if isinstance(cls, type) and cls.__module__ == lr_scheduler.__name__ and "step" in vars(cls):
                self._patches.replace(cls, "step", self._step)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            with self._stepping as depth:
                result = original(scheduler, *args, **kwargs)
            optimizer = vars(scheduler).get("optimizer")
            by_program = getattr(scheduler, "_step_count", 2) > 1  # the constructor makes the first step
            if depth == 1 and by_program and optimizer is not None:
                self.tell(SchedulerStepped, lambda: SchedulerStepped(scheduler, optimizer))
            return result

        return step
