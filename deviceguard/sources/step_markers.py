"""Step markers of backends that collect operations into graphs, and what the graphs between them cost."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

from deviceguard.backends.devices import tracings
from deviceguard.backends.tracing import GraphCounts, Tracing
from deviceguard.events import Event, GraphChange, HostFallback, PendingRead, StepMarked
from deviceguard.naming.frames import origin, outward
from deviceguard.sources.graph_recording import RecordedCall, Recorder, change_between
from deviceguard.sources.modes import put_below, take_out, take_out_of
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_RECORDED_STEPS = 16
"""So many steps may be recorded whenever there is a reason; later on only those that are examined in full."""


class _Thread(threading.local):
    """What is known of the step that is being collected in this thread."""

    def __init__(self) -> None:
        self.last: GraphCounts | None = None
        self.seconds = 0.0
        self.on_purpose = 0
        self.fallbacks: dict[str, int] = {}
        self.recorder: Recorder | None = None
        self.previous: list[RecordedCall] | None = None
        self.recorded = 0


class StepMarkers(Source):
    """Emits at each step marker; in steps that follow trouble also at the calls that cause it.

    Where the backend's package is not imported yet, a post-import hook waits for it.
    """

    provides: ClassVar[frozenset[type[Event]]] = frozenset({StepMarked, PendingRead, HostFallback})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._state = _Thread()
        self._live = True
        self._recorders: weakref.WeakKeyDictionary[Recorder, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:  # noqa: D102
        for tracing in tracings():
            if tracing.is_loaded():
                self._attach(tracing)
            else:
                _after_import(tracing, self)

    def uninstall(self) -> None:  # noqa: D102
        self._live = False
        self._stop_recording()
        for recorder, thread in list(self._recorders.items()):
            recorder.silent = True
            take_out_of(thread, recorder)
        self._patches.restore()

    def loaded(self, tracing: Tracing) -> None:
        """The program has just imported the backend's package."""
        if self._live:
            self._attach(tracing)

    def _attach(self, tracing: Tracing) -> None:
        self._begin(tracing)
        for owner, name in tracing.markers():
            self._patches.replace(owner, name, lambda original: self._marker(original, tracing))
        for owner, name in tracing.flushes():
            self._patches.replace(owner, name, lambda original: self._flush(original, tracing))

    def _begin(self, tracing: Tracing) -> None:
        state = self._state
        state.last = tracing.counts()
        state.seconds = tracing.compile_seconds()
        state.fallbacks = tracing.fallbacks()
        state.on_purpose = 0

    def _marker(self, original: Callable[..., Any], tracing: Tracing) -> Callable[..., Any]:
        def mark(*args: Any, **kwargs: Any) -> Any:
            if not self._live:
                return original(*args, **kwargs)
            early = self._executed_early(tracing)
            recorder = self._stop_recording()
            result = original(*args, **kwargs)
            self._note(tracing, early, recorder, _form(tracing, sys._getframe(1)))
            return result

        return mark

    def _flush(self, original: Callable[..., Any], tracing: Tracing) -> Callable[..., Any]:
        def flush(*args: Any, **kwargs: Any) -> Any:
            before = tracing.counts()
            result = original(*args, **kwargs)
            self._state.on_purpose += tracing.counts().since(before).graphs
            return result

        return flush

    def _executed_early(self, tracing: Tracing) -> int:
        state = self._state
        if state.last is None:
            self._begin(tracing)
            return 0
        now = tracing.counts()
        if now.markers < state.last.markers:  # the program has cleared its counters
            state.last, state.fallbacks = GraphCounts(), {}
        return max(0, now.since(state.last).graphs - state.on_purpose)

    def _note(self, tracing: Tracing, early: int, recorder: Recorder | None, form: str) -> None:
        state = self._state
        before, seconds, known = state.last or GraphCounts(), state.seconds, state.fallbacks
        self._begin(tracing)
        compiled = tracing.counts().since(before).compiled
        fallbacks = _grown(known, state.fallbacks, tracing.reads)
        change = self._change(tracing, recorder, compiled)
        state.previous = recorder.calls if recorder is not None else None
        if StepMarked in self.wanted:
            spent = max(0.0, state.seconds - seconds)
            self.emit(StepMarked(form, compiled, spent, early, fallbacks, change, recorder is not None))
        if compiled or early or fallbacks:
            self._record_next(tracing)

    def _change(self, tracing: Tracing, recorder: Recorder | None, compiled: int) -> GraphChange | None:
        earlier = self._state.previous
        if recorder is None or earlier is None or not compiled:
            return None
        return change_between(earlier, recorder.calls, tracing.data_numbers)

    def _record_next(self, tracing: Tracing) -> None:
        state = self._state
        if state.recorded >= _RECORDED_STEPS and not self.detailed:
            return
        state.recorded += 1
        names = tuple(state.fallbacks)
        before = functools.partial(_figures, tracing, names)
        state.recorder = Recorder(before, functools.partial(self._after_call, tracing, names))
        self._recorders[state.recorder] = threading.get_ident()
        put_below(state.recorder)

    def _stop_recording(self) -> Recorder | None:
        recorder, self._state.recorder = self._state.recorder, None
        if recorder is not None:
            take_out(recorder)
        return recorder

    def _after_call(self, tracing: Tracing, names: tuple[str, ...], call: str, before: Any) -> None:
        now = _figures(tracing, names)
        if now == before:
            return
        counts, fallen = before
        ops = _grown(fallen, now[1], tracing.reads)
        done = now[0].since(counts)
        if ops:
            self.tell(HostFallback, lambda: HostFallback(ops, call))
        elif done.graphs and not done.markers and PendingRead in self.wanted:
            self.emit(PendingRead(call, bool(done.compiled)))


def _figures(tracing: Tracing, names: tuple[str, ...]) -> tuple[GraphCounts, Any]:
    return tracing.counts(), tracing.fallback_count(names)


def _grown(before: Any, now: Any, reads: frozenset[str]) -> dict[str, int]:
    grown = {}
    for name, count in now.items():
        earlier = before.get(name, 0)
        more = count - earlier if count >= earlier else count
        if more and name not in reads:
            grown[name] = more
    return grown


def _form(tracing: Tracing, frame: FrameType | None) -> str:
    """How the program marks this step: the outermost function of the package that leads here."""
    form = tracing.sync_call
    for caller in outward(frame):
        file = caller.f_code.co_filename
        if origin(file) == "user":
            break
        form = tracing.form_of(caller.f_code.co_name, file) or form
    return form


_WAITING: dict[str, weakref.WeakSet[StepMarkers]] = {}
"""By package: the sources that wait for its import. A post-import hook cannot be taken back: there is one for each."""


def _after_import(tracing: Tracing, source: StepMarkers) -> None:
    is_first = tracing.package not in _WAITING
    _WAITING.setdefault(tracing.package, weakref.WeakSet()).add(source)
    if is_first:
        import wrapt

        wrapt.register_post_import_hook(lambda module: _imported(tracing), tracing.package)


def _imported(tracing: Tracing) -> None:
    for source in list(_WAITING.pop(tracing.package, ())):
        source.loaded(tracing)
