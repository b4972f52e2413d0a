"""Calls of modules, through PyTorch's global forward hooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks

from deviceguard.events import Event, ModuleCalled, ModuleReturned
from deviceguard.naming.frames import locals_of
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class _Stack(threading.local):
    """The modules whose forward is running in this thread, outermost first."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []


class ModuleCalls(Source):
    """Emits an event for each root call, and for the calls inside it while a step is examined in full."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ModuleCalled, ModuleReturned})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._stack = _Stack()
        self._handles: list[Any] = []
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(hooks, "_has_any_global_hook", _without_ours)
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    def uninstall(self) -> None:  # noqa: D102
        for handle in self._handles:
            handle.remove()
            hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)  # PyTorch's handle forgets this one
        self._handles = []
        self._patches.restore()
        self._stack = _Stack()

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        stack = self._stack.modules
        parent = stack[-1] if stack else None
        stack.append(module)
        if parent is None or self.detailed:
            try:
                frame = sys._getframe(1)
                self.tell(ModuleCalled, lambda: ModuleCalled(module, args, _kwargs_in(frame), parent is None, parent))
            except BaseException:
                stack.pop()
                raise

    def _after(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """``rest`` is (kwargs, output) after a forward, and the output alone where the forward raised."""
        if torch.compiler.is_compiling():
            return
        stack = self._stack.modules
        while stack and stack.pop() is not module:
            pass  # forwards that an exception other than Exception left behind
        parent = stack[-1] if stack else None
        if (parent is None or self.detailed) and len(rest) == 2:
            self.tell(ModuleReturned, lambda: ModuleReturned(module, args, rest[0], rest[1], parent is None, parent))


def _kwargs_in(frame: FrameType) -> dict[str, Any]:
    """Keyword arguments of the module call that runs in a frame; a global pre-hook is not given them."""
    found = locals_of(frame).get("kwargs")
    return found if isinstance(found, dict) else {}


def _without_ours(original: Callable[[], bool]) -> Callable[[], bool]:
    """Keeps ``torch.compile`` from warning about global hooks when there are no others than the guard's."""

    def _has_any_global_hook() -> bool:
        return original() and any(
            not getattr(hook, "__module__", "").startswith("deviceguard.")
            for registry in (
                hooks._global_backward_pre_hooks,
                hooks._global_backward_hooks,
                hooks._global_forward_hooks,
                hooks._global_forward_pre_hooks,
            )
            for hook in registry.values()
        )

    return _has_any_global_hook
