"""How models are put together: constructors, and registration of parameters and children."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks

from deviceguard.events import Event, ModuleMade, ModuleRegistered, ParameterRegistered
from deviceguard.naming.frames import locals_of, origin, outward, spot_of, user_frame
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class Construction(Source):
    """Emits when a module is made and when it is given a parameter or a child.

    The user's line is looked for here, where the stack is short: it is what costs most of the time, and a large model
    sends thousands of these.
    """

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
            if torch.compiler.is_compiling() or ModuleMade not in self.wanted:
                return
            try:
                spot = spot_of(_construction_frame(module))
            except Exception:
                self.failed(self)
            else:
                self.note(ModuleMade, module, spot)

        return construct

    def _parameter(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if torch.compiler.is_compiling() or ParameterRegistered not in self.wanted:
            return
        try:
            previous = module._parameters.get(name)
            if previous is parameter:
                return
            spot = spot_of(user_frame(sys._getframe(2)))
        except Exception:
            self.failed(self)
            return
        if previous is None:
            self.note(ParameterRegistered, module, name, parameter, previous, spot)
        else:
            self.emit(ParameterRegistered(module, name, parameter, previous, spot))

    def _child(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        if torch.compiler.is_compiling() or ModuleRegistered not in self.wanted:
            return
        previous = module._modules.get(name)
        if previous is None:
            self.note(ModuleRegistered, module, name, child, previous)
        elif previous is not child:
            self.emit(ModuleRegistered(module, name, child, previous))


def _construction_frame(module: nn.Module) -> FrameType | None:
    """The user's frame that makes a module: the first beyond the constructors that are building it."""
    inside = True
    for frame in outward(user_frame()):
        names = frame.f_code.co_varnames
        if inside and frame.f_code.co_name == "__init__" and names and locals_of(frame).get(names[0]) is module:
            continue
        inside = False
        if origin(frame.f_code.co_filename) == "user":
            return frame
    return None
