"""Torch calls that are refused for devices or dtypes, while they can still be made again with other operands.

A function mode calls each function in a ``try``; nothing else is done while nothing is refused.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.overrides import _get_current_function_mode_stack, _push_mode

from deviceguard.events import Event
from deviceguard.naming.frames import outward
from deviceguard.naming.handling import is_expected
from deviceguard.remedies import CallRefused
from deviceguard.sources.calls import TableMode, _has_fast_path, _take_out
from deviceguard.sources.post_mortem import examine
from deviceguard.sources.refusals import problem_of
from deviceguard.sources.source import Emit, Source

_REPAIRABLE = frozenset({"device", "index-device", "dtype", "host-only", "generator-device"})
_TRIES = 3
"""How often one call is repaired: it may be wrong in device and in dtype."""


class RefusedCalls(Source):
    """Emits :class:`CallRefused` in the thread it is installed in, and makes the call again where a policy says so."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({CallRefused})
    per_thread: ClassVar[bool] = True

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._mode: RefusalMode | None = None
        self._handles: list[Any] = []
        self._thread = 0

    def install(self) -> None:  # noqa: D102
        self._thread = threading.get_ident()
        self._mode = RefusalMode(self._refused)
        _push_mode(self._mode)
        self._handles = [
            hooks.register_module_forward_pre_hook(self._hide),
            hooks.register_module_forward_hook(self._show, always_call=True),
        ]

    def uninstall(self) -> None:  # noqa: D102
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._mode is not None and self._mode in _get_current_function_mode_stack():
            _take_out(self._mode)
        self._mode = None

    def _refused(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        for _ in range(_TRIES):
            event = self.attempt(_event_of, function, args, kwargs, error, sys._getframe(2), default=None)
            if event is None:
                break
            self.emit(event)
            if event.again is None:
                break
            args, kwargs = event.again
            try:
                output = function(*args, **kwargs)
            except Exception as still:
                error = still
                if event.settle is not None:
                    event.settle(False)
                if problem_of(error) not in _REPAIRABLE:
                    break
                continue
            if event.settle is not None:
                event.settle(True)
            return output
        raise error

    # As in Calls: fused inference paths see a mode and leave out their fusion.

    def _hide(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and self._is_here and _has_fast_path(module) and self._mode is not None:
            self._mode.hide()

    def _show(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._is_here and _has_fast_path(module) and self._mode is not None:
            self._mode.show()

    @property
    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread


class RefusalMode(TableMode):
    """Calls each function, and hands a refusal on.

    Args:
        refused: given the function, its arguments and the error; returns what the call is to return, or raises.
    """

    def __init__(self, refused: Callable[..., Any]) -> None:
        super().__init__({RefusalMode: _never}, _never)
        self._refused = refused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        except Exception as error:
            if problem_of(error) not in _REPAIRABLE:
                raise
            return self._refused(func, args, kwargs or {}, error)


def _never(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError


def _event_of(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, frame: FrameType | None
) -> CallRefused | None:
    """The event for a refusal; None where the program expects it, and where it is no refusal."""
    before = error.__traceback__
    try:
        whole = _whole(before, frame)
        failed = examine(error.with_traceback(whole)) if not is_expected(whole, error) else None
    finally:
        error.__traceback__ = before
    if failed is None:
        return None
    facts = {field.name: getattr(failed, field.name) for field in dataclasses.fields(failed)}
    return CallRefused(**facts, function=function, args=args, kwargs=kwargs)


def _whole(inner: TracebackType | None, caller: FrameType | None) -> TracebackType | None:
    """The traceback the error would have if nobody caught it: the running frames, then its own."""
    traceback = inner
    for frame in outward(caller):
        traceback = TracebackType(traceback, frame, max(frame.f_lasti, 0), frame.f_lineno or 0)
    return traceback
