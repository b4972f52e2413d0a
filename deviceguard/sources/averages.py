"""Updates of PyTorch's own averaged models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn
from torch.optim import swa_utils

from deviceguard.events import AverageUpdated, Event
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class Averages(Source):
    """Emits after ``AveragedModel.update_parameters``."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({AverageUpdated})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(swa_utils.AveragedModel, "update_parameters", self._update)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update_parameters(average: Any, model: nn.Module) -> Any:
            result = original(average, model)
            self.tell(AverageUpdated, lambda: AverageUpdated(average, model))
            return result

        return update_parameters
