"""The one piece of process-wide state: which sessions are open, which sources they need, who gets an event."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deviceguard.backends.arrivals import after_import
from deviceguard.backends.simulated import running_simulation
from deviceguard.busy import BUSY
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.events import Event, OptimizerStepped
from deviceguard.simulate.attribution import ATTRIBUTION
from deviceguard.steps import Steps

if TYPE_CHECKING:
    from deviceguard.session import Session
    from deviceguard.sources.source import Source


log = logging.getLogger("deviceguard")


class Hub:
    """Passes events from the sources to the sessions.

    An event goes to the sessions that were entered in the thread it comes from; where that thread entered none, to all.
    A session of the whole process hears of everything.
    The innermost of them applies its policy, the others record. Events that the guard's own work causes are dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sessions: list[Session] = []
        self._installed: dict[tuple[type[Source], int], Source] = {}
        self._busy = BUSY
        self._simulation: object | None = None
        self._attention: tuple[bool | None, bool | None] = (None, None)
        self._removed = 0

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The open sessions in the order in which they were entered."""
        return tuple(self._sessions)

    def enter(self, session: Session) -> None:
        """Open a session and install what it needs."""
        with self._lock:
            if not self._sessions:
                ATTRIBUTION.install()
            self._sessions.append(session)
            self._adjust()
        after_import(self._adapt)

    def leave(self, session: Session) -> None:
        """Close a session and remove the sources nobody needs any more."""
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)
                if not self._sessions:
                    ATTRIBUTION.uninstall()
            self._adjust()

    def emit(self, event: Event) -> None:
        """Hand an event to the sessions it is for.

        Raises:
            DeviceGuardError, DeviceGuardWarning: what a policy decides to raise, and nothing else.
        """
        if self._busy.value:
            return
        try:
            self._hand_out(event)
        except (DeviceGuardError, DeviceGuardWarning):
            raise
        except Exception:
            self._failed_at("handing out events", event)

    def note(self, kind: type[Event], *fields: Any) -> None:
        """Hand what only ledgers remember to the sessions it is for: as ``emit``, without making the event.

        Args:
            kind: the event's class.
            fields: what the event would be made of.

        Raises:
            DeviceGuardError, DeviceGuardWarning: what a policy decides to raise, and nothing else.
        """
        if self._busy.value:
            return
        try:
            for session in self._targets():
                session.engine.note(kind, fields)
        except (DeviceGuardError, DeviceGuardWarning):
            raise
        except Exception:
            self._failed_at("taking note")

    def _hand_out(self, event: Event) -> None:
        if running_simulation() is not self._simulation and self._sessions:
            self._adapt()
        targets = self._targets()
        if not targets:
            return
        self._busy.value = True  # spelled out, where at_work() would cost a generator an event
        try:
            innermost = targets[-1]
            for session in targets[:-1]:
                session.engine.handle(event, applying=False)
            innermost.engine.handle(event)
        finally:
            self._busy.value = False
        if event.recurring or type(event) in Steps.EVENTS:
            self._attune()
        if type(event) is OptimizerStepped and len(self._given_up()) != self._removed:
            self._adapt()

    def source_failed(self, source: Source) -> None:
        """Count a failure of a source's own, told once with the traceback that is being handled."""
        self._failed_at(f"source {type(source).__name__}")

    def _failed_at(self, where: str, event: Event | None = None) -> None:
        for session in list(self._sessions):
            session.engine.failed(where, event)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While the guard itself works in this thread: what its own work causes is no event."""
        before, self._busy.value = self._busy.value, True
        try:
            yield
        finally:
            self._busy.value = before

    def forget(self) -> None:
        """Close all sessions without a word: a forked child is not guarded by its parent's sessions.

        What they installed stays and tells nobody; a session of the child's own takes it over.
        """
        self._lock = threading.RLock()
        self._busy.value = False
        self._sessions = []

    def _adapt(self) -> None:
        """A device came or went inside a guarded block, so that rules about accelerators begin or end too.

        A simulation began or ended, or the package of a backend was imported.
        """
        with self._lock, self.at_work():
            self._adjust()

    def _given_up(self) -> list[Session]:
        """The sessions whose guard has switched itself off: nothing stays installed for them."""
        return [session for session in self._sessions if session.engine.is_off]

    def _targets(self) -> list[Session]:
        if len(self._sessions) < 2:
            return list(self._sessions)
        thread = threading.get_ident()
        if any(session.thread == thread and not session.whole_process for session in self._sessions):
            return [session for session in self._sessions if session.thread == thread or session.whole_process]
        return list(self._sessions)

    def _attune(self) -> None:
        """Tell the sources how closely to look now."""
        detailed = listening = False
        for session in self._sessions:
            steps = session.engine.steps
            detailed, listening = detailed or steps.examined, listening or steps.listening
        if (detailed, listening) != self._attention:
            with self._lock, self.at_work():
                wanted = self._wanted_now() if listening != self._attention[1] else None
                self._attention = (detailed, listening)
                for source in self._installed.values():
                    source.detailed = detailed
                    if wanted is not None:
                        source.wanted = wanted

    def _wanted_now(self) -> frozenset[type[Event]]:
        live = [session for session in self._sessions if not session.engine.is_off]
        return frozenset().union(*(session.engine.wanted_now for session in live)) if live else frozenset()

    def _adjust(self) -> None:
        from deviceguard.sources.all import SOURCES

        self._simulation = running_simulation()
        self._removed = len(self._given_up())
        live = [session for session in self._sessions if not session.engine.is_off]
        wanted = frozenset().union(*(session.engine.wanted for session in live)) if live else frozenset()
        needed: set[tuple[type[Source], int]] = set()
        for cls in SOURCES:
            if cls.per_thread:
                keys = {(cls, s.thread) for s in live if cls.provides & s.engine.wanted}
            else:
                keys = {(cls, 0)} if cls.provides & wanted else set()
            needed |= keys
        for key in [key for key in self._installed if key not in needed]:
            self._remove(self._installed.pop(key))
        for cls in SOURCES:
            for key in sorted(key for key in needed if key[0] is cls and key not in self._installed):
                source = cls(self.emit)
                source.note = self.note
                source.wanted = wanted
                source.failed = self.source_failed
                self._install(source)
                self._installed[key] = source
        self._attention = (None, None)
        self._attune()

    def _install(self, source: Source) -> None:
        """A source that cannot be installed is left out; the run goes on without its events."""
        try:
            source.install()
        except Exception:
            self._failed("install", source)
            self._remove(source)

    def _remove(self, source: Source) -> None:
        try:
            source.uninstall()
        except Exception:
            self._failed("remove", source)

    def _failed(self, what: str, source: Source) -> None:
        for session in self._sessions:
            session.report.internal_errors += 1
        log.warning("deviceguard could not %s %s; the run goes on", what, type(source).__name__, exc_info=True)


HUB = Hub()
"""The hub of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HUB.forget)
