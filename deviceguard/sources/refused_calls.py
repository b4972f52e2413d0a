"""Torch calls that are refused for devices or dtypes, while they can still be made again with other operands.

A function mode calls each function in a ``try``; nothing else is done while nothing is refused.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, ClassVar

import torch

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import Event, Operand
from deviceguard.naming.frames import outward
from deviceguard.naming.handling import is_expected
from deviceguard.remedies import Again, CallRefused, Settle
from deviceguard.sources.calls import TableMode
from deviceguard.sources.fast_paths import FAST_PATHS
from deviceguard.sources.modes import take_out_of
from deviceguard.sources.post_mortem import examine
from deviceguard.sources.refusals import problem_of
from deviceguard.sources.source import Emit, Source

_REPAIRABLE = frozenset({"device", "index-device", "dtype", "host-only", "generator-device"})
_TRIES = 3
"""How often one call is repaired: it may be wrong in device and in dtype."""
_MOST = 512
"""Places whose repair is remembered, so that the rules need not be asked at each step."""


class RefusedCalls(Source):
    """Emits :class:`CallRefused` in the thread it is installed in, and makes the call again where a policy says so."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({CallRefused})
    per_thread: ClassVar[bool] = True

    def __init__(self, emit: Emit) -> None:
        self._wanted: frozenset[type[Event]] = frozenset()
        self._known: dict[Any, Callable[..., tuple[Again, Settle] | None]] = {}
        super().__init__(emit)
        self._mode: RefusalMode | None = None
        self._thread = 0

    def install(self) -> None:  # noqa: D102
        self._thread = threading.get_ident()
        self._mode = RefusalMode(self._refused)
        self._mode.put_on()
        FAST_PATHS.add(self._mode)

    def uninstall(self) -> None:  # noqa: D102
        self._known.clear()
        if self._mode is not None:
            FAST_PATHS.remove(self._mode)
            self._mode.is_due = False
            take_out_of(self._thread, self._mode)
        self._mode = None

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events somebody wants now; set whenever a session opens or closes, which may change what is repaired."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: frozenset[type[Event]]) -> None:
        self._wanted = wanted
        self._known.clear()

    def _refused(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        for _ in range(_TRIES):
            place = _place_of(function, args, kwargs, sys._getframe(2))
            found = self.attempt(self._repeated, place, args, kwargs, sys._getframe(2), default=None)
            if found is None:
                found = self._asked(place, function, args, kwargs, error)
            if found is None:
                break
            (args, kwargs), settle = found
            try:
                output = function(*args, **kwargs)
            except Exception as still:
                error = still
                self._known.pop(place, None)
                settle(False)
                if problem_of(error) not in _REPAIRABLE:
                    break
                continue
            settle(True)
            return output
        raise error

    def _asked(
        self, place: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
    ) -> tuple[Again, Settle] | None:
        """What somebody who hears of the refusal wants done; None for nothing."""
        event = self.attempt(_event_of, function, args, kwargs, error, sys._getframe(3), default=None)
        if event is None:
            return None
        self.emit(event)
        if event.again is None:
            return None
        if event.repeat is not None and len(self._known) < _MOST:
            self._known[place] = event.repeat
        return event.again, event.settle or _no_more

    def _repeated(
        self, place: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> tuple[Again, Settle] | None:
        known = self._known.get(place)
        return known(args, kwargs, frame) if known is not None else None


class RefusalMode(TableMode):
    """Calls each function, and hands a refusal on.

    Args:
        refused: given the function, its arguments and the error; returns what the call is to return, or raises.
    """

    def __init__(self, refused: Callable[..., Any]) -> None:
        super().__init__({}, _never)
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


def _place_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None) -> Any:
    """What two refusals at one place have in common: the running lines of all callers, and where the operands are."""
    lines = tuple((outer.f_code, outer.f_lasti) for outer in outward(frame))
    return function, lines, tuple((t.device, t.dtype, t.dim() == 0) for t in _tensors_in((args, kwargs)))


def _tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth - 1)


def _no_more(succeeded: bool) -> None:
    """Nothing is left to do after the call."""


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
    facts["operands"] = [*failed.operands, *_unnamed(failed.operands, (args, kwargs))]
    return CallRefused(**facts, function=function, args=args, kwargs=kwargs)


def _unnamed(known: Sequence[Operand], given: Any) -> Iterator[Operand]:
    """The device tensors of the call that the source has no name for, such as the result of an inner call."""
    for number, tensor in enumerate(_tensors_in(given), 1):
        if is_accelerator(tensor.device) and not any(tensor is operand.tensor for operand in known):
            yield Operand(f"argument {number}", None, tensor)


def _whole(inner: TracebackType | None, caller: FrameType | None) -> TracebackType | None:
    """The traceback the error would have if nobody caught it: the running frames, then its own."""
    traceback = inner
    for frame in outward(caller):
        traceback = TracebackType(traceback, frame, max(frame.f_lasti, 0), frame.f_lineno or 0)
    return traceback
