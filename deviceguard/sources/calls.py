"""Calls of single torch functions, through a function mode: losses, and what makes the host wait or moves data.

The mode looks one function object up in a table made when it was installed; a function that nobody asked for costs
that look-up only. Which functions wait is said in ``sync_table``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _push_mode

from deviceguard.busy import BUSY
from deviceguard.events import (
    ArraysConverted,
    Blended,
    CopyQueued,
    Event,
    GradientHandled,
    HostRead,
    IntegersWritten,
    LossComputed,
    MovedBetweenDevices,
    UnsettledAccess,
    Uploaded,
)
from deviceguard.sources import blends, gradient_calls, integer_writes, sync_table, unsettled
from deviceguard.sources.covering import COVER
from deviceguard.sources.device_queue import QUEUE
from deviceguard.sources.fast_paths import FAST_PATHS
from deviceguard.sources.losses import LOSSES, operands_of
from deviceguard.sources.modes import frames_compiled, put_above, take_out, take_out_of
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_TRANSFERS: frozenset[type[Event]] = frozenset(
    {ArraysConverted, CopyQueued, HostRead, MovedBetweenDevices, UnsettledAccess, Uploaded}
)


class Calls(Source):
    """Emits for the functions in its table, in the thread it is installed in."""

    provides: ClassVar[frozenset[type[Event]]] = _TRANSFERS | {
        Blended,
        GradientHandled,
        IntegersWritten,
        LossComputed,
    }
    per_thread: ClassVar[bool] = True

    def __init__(self, emit: Emit) -> None:
        self._mode: TableMode | None = None
        self._wanted: frozenset[type[Event]] = frozenset()
        super().__init__(emit)
        self._patches = Patches()
        self._thread = 0
        self._compiled_before = 0
        self._tables: dict[frozenset[type[Event]], dict[Any, Handler]] = {}

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events somebody wants now; the table follows it."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: frozenset[type[Event]]) -> None:
        changed, self._wanted = wanted != self._wanted, wanted
        if changed and self._mode is not None:
            self._attune(self._mode)

    def install(self) -> None:  # noqa: D102
        self._thread = threading.get_ident()
        self._compiled_before = frames_compiled()
        self._mode = TableMode({}, self._watch)
        self._mode.put_on()
        self._attune(self._mode)
        FAST_PATHS.add(self._mode)
        self._patches.replace(torch.autograd, "_engine_run_backward", self._with_mode)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()
        if self._mode is not None:
            FAST_PATHS.remove(self._mode)
            self._mode.table = {}
            self._mode.is_due = False
            take_out_of(self._thread, self._mode)
        self._mode = None
        QUEUE.forget()

    def _attune(self, mode: TableMode) -> None:
        """Off the stack while nobody wants anything, so that a call costs nothing; back where it was afterwards.

        From another thread, whose stack this is not, the mode can only be told to look at nothing. Code is compiled for
        the stack it was first called under, and would be compiled again under another: what is on it when something
        was compiled stays on, and what is off stays off.
        """
        mode.table = self._tables.get(self._wanted) or self._table()
        self._tables = {self._wanted: mode.table, **dict(list(self._tables.items())[:3])}
        if not mode.table:
            QUEUE.forget()
        compiled = frames_compiled()
        if mode.table and compiled <= self._compiled_before:
            mode.is_due = True
        elif not mode.table and not compiled:
            mode.is_due = False
        if threading.get_ident() != self._thread or mode.is_hidden:
            return
        if mode.is_due:
            mode.put_back()
        else:
            take_out(mode)

    def _table(self) -> dict[Any, Handler]:
        losses = frozenset(LOSSES) if LossComputed in self.wanted else frozenset()
        writes = integer_writes.before() if IntegersWritten in self.wanted else {}
        if Blended in self.wanted:
            writes = {**writes, **blends.before()}
        if GradientHandled in self.wanted:
            writes = {**writes, **gradient_calls.before()}
        transfers = bool(self.wanted & _TRANSFERS)
        reads = {**sync_table.before(), **sync_table.conversions()} if transfers else {}
        before = {function: _both(reads.get(function), writes.get(function)) for function in {*reads, *writes}}
        after = sync_table.after() if transfers else {}
        return {
            function: self._handler(before.get(function), after.get(function), is_loss=function in losses)
            for function in {*before, *after, *losses}
        }

    def _handler(self, before: sync_table.Before | None, after: sync_table.After | None, is_loss: bool) -> Handler:
        if before is not None and after is None and not is_loss:
            return self._handler_before(before)

        def handle(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                events = before(args, kwargs) if before is not None else []
            except Exception as problem:
                return self._unjudged(problem, function, args, kwargs)
            is_told = bool(events) or after is not None
            start = perf_counter()
            output = COVER.run(function, args, kwargs) if is_told else function(*args, **kwargs)
            seconds = perf_counter() - start
            if after is not None:
                nothing: list[Event] = []
                events = events + self.attempt(after, args, kwargs, output, default=nothing)
            self._emit_all(events, seconds)
            if is_loss:
                self.tell(
                    LossComputed,
                    lambda: LossComputed(function.__name__, operands_of(function, args, kwargs), output),
                )
            return output

        return handle

    def _handler_before(self, before: sync_table.Before) -> Handler:
        """The common case, with as little work as it can do for a call that waits for nothing."""

        def handle(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                events = before(args, kwargs)
            except Exception as problem:
                return self._unjudged(problem, function, args, kwargs)
            if not events:
                return function(*args, **kwargs)
            start = perf_counter()
            output = COVER.run(function, args, kwargs)
            self._emit_all(events, perf_counter() - start)
            return output

        return handle

    def _unjudged(self, problem: Exception, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call whose row failed. That is the guard's failure only where PyTorch takes the arguments."""
        output = function(*args, **kwargs)
        self.attempt(_fail, problem, default=None)
        return output

    def _emit_all(self, events: list[Event], seconds: float) -> None:
        for event in events:
            if isinstance(event, HostRead | Uploaded | ArraysConverted):
                event.seconds = seconds / len(events)
            if type(event) in self.wanted:
                self.emit(event)

    def _watch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call while copies are queued or a clock is running."""
        if QUEUE.copies:
            for event in unsettled.accesses(function, args, kwargs):
                if UnsettledAccess in self.wanted:
                    self.emit(event)
        if QUEUE.timed and not QUEUE.launched and unsettled.launches(function, args, kwargs):
            QUEUE.launched = True

    # Backward runs in C++ with the mode off, so that hooks, custom functions and recomputation would be unseen.

    def _with_mode(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            mode = self._mode
            if mode is None or torch.compiler.is_compiling() or not self._may_enter(mode):
                return original(*args, **kwargs)
            _push_mode(mode)
            try:
                return original(*args, **kwargs)
            finally:
                take_out(mode)

        return run

    def _may_enter(self, mode: TableMode) -> bool:
        """Not in another thread, not twice, and not where a backward may be compiled while it runs."""
        return (
            mode.is_due
            and threading.get_ident() == self._thread
            and not frames_compiled()
            and not mode.is_hidden
            and mode not in _get_current_function_mode_stack()
        )


class TableMode(TorchFunctionMode):
    """Hands a call to the handler of its function, if it has one.

    Args:
        table: the handlers by function object.
        watch: called before every function while the device queue is worth watching.

    Attributes:
        is_due: False while its place is off the stack.
    """

    def __init__(self, table: dict[Any, Handler], watch: Handler) -> None:
        super().__init__()
        self.table = table
        self.watch = watch
        self.is_due = True
        self._hidden = 0
        self._below: list[TorchFunctionMode] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        if not self.table:
            return func(*args, **kwargs) if kwargs else func(*args)
        handler = self.table.get(func)
        if (QUEUE.copies or (QUEUE.timed and not QUEUE.launched)) and not BUSY.value:
            self.watch(func, args, kwargs or {})
        if handler is None or BUSY.value:
            return func(*args, **kwargs) if kwargs else func(*args)
        return handler(func, args, kwargs or {})

    @property
    def is_hidden(self) -> bool:
        """True while a fused path that would see the mode is running."""
        return self._hidden > 0

    def put_on(self) -> None:
        """Put the mode on top of this thread's stack for the first time."""
        self._below = list(_get_current_function_mode_stack())
        _push_mode(self)

    def put_back(self) -> None:
        """Put the mode where it was, above what it was pushed upon and under what came later."""
        if self not in _get_current_function_mode_stack():
            put_above(self, self._below)

    def hide(self) -> None:
        """Take the mode off the stack until ``show`` was called as often."""
        self._hidden += 1
        if self._hidden == 1:
            take_out(self)

    def show(self) -> None:
        """Put the mode back where it was."""
        self._hidden = max(0, self._hidden - 1)
        if self._hidden == 0 and self.is_due:
            self.put_back()


def _both(one: sync_table.Before | None, other: sync_table.Before | None) -> sync_table.Before | None:
    if one is None or other is None:
        return one or other

    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        return one(args, kwargs) + other(args, kwargs)

    return classify


def _fail(problem: Exception) -> None:
    raise problem
