"""The base of all sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from deviceguard.events import Event

Emit = Callable[[Event], None]
_T = TypeVar("_T")


def _unnoted(kind: type[Event], *fields: Any) -> None:
    """Stands in for the hub's ``note`` where there is no hub."""


def _untold(source: Source) -> None:
    """Stands in for the hub's ``source_failed`` where there is no hub."""


class Source:
    """Captures one kind of thing while it is installed.

    A source is installed once per process however many sessions want it, or once per thread where ``per_thread`` says
    so, and leaves every object it touched as it found it.

    Attributes:
        provides: the events it can emit; it is installed only while somebody wants one of them.
        per_thread: True for a source whose effect is limited to the thread it is installed in.
        wanted: the events somebody wants now; kept up to date by the hub.
        note: as ``emit``, for events by the thousand that are only remembered: takes the class and the fields.
        detailed: False while nobody examines the running step in full; a source may then skip what is only for that.
    """

    provides: ClassVar[frozenset[type[Event]]]
    per_thread: ClassVar[bool] = False

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.wanted: frozenset[type[Event]] = frozenset()
        self.detailed = True
        self.note: Callable[..., None] = _unnoted
        self.failed: Callable[[Source], None] = _untold

    def attempt(self, look: Callable[..., _T], *args: Any, default: _T) -> _T:
        """The result of the guard's own work beside the user's call; the default where that work fails.

        The user's call itself is never made in here: its exceptions are the user's.
        """
        try:
            return look(*args)
        except Exception:
            self.failed(self)
            return default

    def tell(self, kind: type[Event], build: Callable[[], Event | None]) -> None:
        """Emit an event if anybody wants it; that it cannot be built is the guard's own failure.

        Args:
            kind: the event's class.
            build: makes the event, or returns None where there is nothing to tell after all.
        """
        if kind in self.wanted:
            event = self.attempt(build, default=None)
            if event is not None:
                self.emit(event)

    def install(self) -> None:
        """Start capturing."""
        raise NotImplementedError

    def uninstall(self) -> None:
        """Stop capturing and restore every attribute to the very object it was."""
        raise NotImplementedError
