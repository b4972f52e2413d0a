"""What ``torch.load`` reads and ``torch.jit.trace`` makes: tensors and code that bring a device along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from deviceguard.events import Event, ModuleTraced, ObjectLoaded
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class Loading(Source):
    """Emits after each load and trace."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ObjectLoaded, ModuleTraced})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(torch, "load", self._load)
        self._patches.replace(torch.jit, "trace", self._trace)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            given = kwargs.get("map_location", args[1] if len(args) > 1 else None)
            self.tell(ObjectLoaded, lambda: ObjectLoaded(result, given is not None))
            return result

        return load

    def _trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def trace(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            examples = (*args[1:2], kwargs.get("example_inputs"), kwargs.get("example_kwarg_inputs"))
            self.tell(
                ModuleTraced,
                lambda: ModuleTraced(result, frozenset(str(tensor.device) for tensor in _tensors(examples))),
            )
            return result

        return trace


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
