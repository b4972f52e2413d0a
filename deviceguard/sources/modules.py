"""Calls of modules, through PyTorch's global forward hooks."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as hooks

from deviceguard.events import Event, ModuleCalled, ModuleMet, ModuleReturned
from deviceguard.naming.frames import locals_of
from deviceguard.sources.fast_paths import FAST_PATHS, may_be_fused
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_CALLS = frozenset({ModuleCalled, ModuleReturned})
_CALL = nn.Module._call_impl.__code__


class _Stack(threading.local):
    """The modules whose forward is running in this thread, outermost first.

    Attributes:
        listening: which stretch of listening it belongs to; what an earlier one left says nothing.
    """

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.listening = 0


class ModuleCalls(Source):
    """Emits an event for each root call, and for the calls inside it while a step is examined in full.

    While nobody wants calls it only tells of root modules that were not called so before. Its hooks stay where they are
    then: compiled code is guarded by them.
    """

    provides: ClassVar[frozenset[type[Event]]] = frozenset({*_CALLS, ModuleMet})

    def __init__(self, emit: Emit) -> None:
        self._listening = 1
        self._is_quiet = False
        self._wanted: frozenset[type[Event]] = frozenset()
        super().__init__(emit)
        self._stack = _Stack()
        self._met: dict[bool, dict[int, weakref.ref[nn.Module]]] = {True: {}, False: {}}  # by mode and identity
        self._handles: list[Any] = []
        self._patches = Patches()

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events somebody wants now."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: frozenset[type[Event]]) -> None:
        was_quiet, self._wanted = self._is_quiet, wanted
        self._is_quiet = wanted.isdisjoint(_CALLS)
        if was_quiet and not self._is_quiet:
            self._listening += 1

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
        if is_compiling():
            return
        if may_be_fused(module):
            FAST_PATHS.enter()
        met = self._met[getattr(module, "training", True) is True]
        is_new = id(module) not in met
        if is_new:
            _note(module, met)
        if self._is_quiet:
            if not is_new or any(True for _ in _running(sys._getframe(1))):
                return
            self.tell(ModuleMet, lambda: ModuleMet(module))
            if self._is_quiet:
                return
            is_new = False
        self._called(module, args, sys._getframe(1), is_new)

    def _called(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType, is_new: bool) -> None:
        stack = self._stack.modules
        if self._stack.listening != self._listening:
            stack[:] = reversed(list(_running(frame)))
            self._stack.listening = self._listening
        parent = stack[-1] if stack else None
        stack.append(module)
        if parent is None or self.detailed:
            try:
                if is_new and parent is None:
                    self.tell(ModuleMet, lambda: ModuleMet(module))
                self.tell(ModuleCalled, lambda: ModuleCalled(module, args, _kwargs_in(frame), parent is None, parent))
            except BaseException:
                stack.pop()
                raise

    def _after(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """``rest`` is (kwargs, output) after a forward, and the output alone where the forward raised."""
        if is_compiling():
            return
        if may_be_fused(module):
            FAST_PATHS.leave()
        if self._is_quiet or self._stack.listening != self._listening:
            return
        stack = self._stack.modules
        while stack and stack.pop() is not module:
            pass  # forwards that an exception other than Exception left behind
        parent = stack[-1] if stack else None
        if (parent is None or self.detailed) and len(rest) == 2:
            self.tell(ModuleReturned, lambda: ModuleReturned(module, args, rest[0], rest[1], parent is None, parent))


def _note(module: nn.Module, met: dict[int, weakref.ref[nn.Module]]) -> None:
    key = id(module)
    met[key] = weakref.ref(module, lambda _: met.pop(key, None))


def _running(frame: FrameType | None) -> Iterator[nn.Module]:
    """The modules in whose forward the module call of a frame was made, innermost first."""
    is_own = True
    while frame is not None:
        if frame.f_code is _CALL:
            if not is_own:
                yield locals_of(frame)["self"]
            is_own = False
        frame = frame.f_back


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
