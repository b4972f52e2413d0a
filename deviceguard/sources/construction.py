"""How models are put together: constructors, and registration of parameters and children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks

from deviceguard.events import Event, ModuleMade, ModuleRegistered, ParameterRegistered
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class Construction(Source):
    """Emits when a module is made and when it is given a parameter or a child."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ModuleMade, ParameterRegistered, ModuleRegistered})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._handles: list[Any] = []

    def install(self) -> None:  # noqa: D102
        self._patches.replace(nn.Module, "__init__", self._constructor)
        self._handles = [
            hooks.register_module_parameter_registration_hook(self._parameter),
            hooks.register_module_module_registration_hook(self._child),
        ]

    def uninstall(self) -> None:  # noqa: D102
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._patches.restore()

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def construct(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            if not torch.compiler.is_compiling():
                self.tell(ModuleMade, lambda: ModuleMade(module))

        return construct

    def _parameter(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if torch.compiler.is_compiling() or ParameterRegistered not in self.wanted:
            return
        previous = module._parameters.get(name)
        if previous is not parameter:
            self.emit(ParameterRegistered(module, name, parameter, previous))

    def _child(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        if torch.compiler.is_compiling() or ModuleRegistered not in self.wanted:
            return
        previous = module._modules.get(name)
        if previous is not child:
            self.emit(ModuleRegistered(module, name, child, previous))
