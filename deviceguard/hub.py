"""The one piece of process-wide state: which sessions are open, which sources they need, who gets an event."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from deviceguard.events import Event, ModuleCalled
from deviceguard.steps import Steps

if TYPE_CHECKING:
    from deviceguard.session import Session
    from deviceguard.sources.source import Source


class _Busy(threading.local):
    value = False


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
        self._busy = _Busy()
        self._pid = os.getpid()

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The open sessions in the order in which they were entered."""
        return tuple(self._sessions)

    def enter(self, session: Session) -> None:
        """Open a session and install what it needs."""
        with self._lock:
            self._pid = os.getpid()
            self._sessions.append(session)
            self._adjust()

    def leave(self, session: Session) -> None:
        """Close a session and remove the sources nobody needs any more."""
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)
            self._adjust()

    def emit(self, event: Event) -> None:
        """Hand an event to the sessions it is for."""
        if self._busy.value or os.getpid() != self._pid:
            return
        targets = self._targets()
        if not targets:
            return
        self._busy.value = True
        try:
            innermost = targets[-1]
            for session in targets[:-1]:
                session.engine.handle(event, applying=False)
            innermost.engine.handle(event)
        finally:
            self._busy.value = False
        if type(event) in Steps.EVENTS and not (type(event) is ModuleCalled and innermost.engine.steps.training):
            self._update_detail()

    def _targets(self) -> list[Session]:
        thread = threading.get_ident()
        if any(session.thread == thread and not session.whole_process for session in self._sessions):
            return [session for session in self._sessions if session.thread == thread or session.whole_process]
        return list(self._sessions)

    def _update_detail(self) -> None:
        detailed = any(session.engine.steps.examined for session in self._sessions)
        for source in self._installed.values():
            source.detailed = detailed

    def _adjust(self) -> None:
        from deviceguard.sources.all import SOURCES

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
            self._installed.pop(key).uninstall()
        for cls in SOURCES:
            for key in sorted(key for key in needed if key[0] is cls and key not in self._installed):
                source = cls(self.emit)
                source.wanted = wanted
                source.install()
                self._installed[key] = source
        for source in self._installed.values():
            source.wanted = wanted
        self._update_detail()


HUB = Hub()
"""The hub of this process."""
