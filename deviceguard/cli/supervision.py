"""Runs a program under the guard and ends as the program would have ended."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from deviceguard.cli.late_session import LateSession
from deviceguard.cli.signals import before_death
from deviceguard.cli.target import CannotRun, Target
from deviceguard.cli.tracebacks import without_guard
from deviceguard.errors import DeviceGuardError
from deviceguard.findings import Finding
from deviceguard.settings import Settings


class Supervision:
    """The run of one program.

    Args:
        settings: the settings in force.
        quiet: True for no summary at the end.
    """

    def __init__(self, settings: Settings, quiet: bool = False) -> None:
        self._quiet = quiet
        self._session = LateSession(settings)
        self._summarized = False

    def run(self, find: Callable[[], Target], arguments: list[str]) -> None:
        """Run the program; returns or raises what it ends with.

        Args:
            find: finds the program.
            arguments: its arguments, without ``sys.argv[0]``.
        """
        sys.argv[:] = ["-m", *arguments]  # what packages find that are imported on the way to a module
        before_death(self._at_signal)
        atexit.register(self._at_exit)
        self._session.prepare()
        ending = _ending_of(lambda: _execute(find()))
        if isinstance(ending, CannotRun):
            self._session.closed = True  # nothing ran, so there is nothing to tell
            raise ending
        if self._session.is_here:
            self._end(ending)
        elif ending is not None:
            raise ending

    def _end(self, ending: BaseException | None) -> None:
        if ending is not None and not isinstance(ending, SystemExit):
            self._die(self._close(ending) or ending)
        if isinstance(ending, SystemExit):
            _say_exit(ending)
        if not _threads_are_left():
            raised = self._close(None if _is_success(ending) else ending)
            if raised is not None:
                self._die(raised)
            _say(self._summary())
        if ending is not None:
            raise ending

    def _close(self, error: BaseException | None) -> BaseException | None:
        """Close the session; what that raised."""
        return _ending_of(lambda: self._session.close(error))

    def _die(self, ending: BaseException) -> None:
        """Leave through Python's own way out, which prints the traceback; the summary comes after it."""
        without_guard(ending)
        hook, shown = sys.excepthook, ending.__traceback__
        told = ending.finding if isinstance(ending, DeviceGuardError) else None
        summary = self._summary(
            told
        )  # now: running more code later would have Python forget a KeyboardInterrupt's status

        def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            if error is not ending:
                hook(kind, error, traceback)
                return
            hook(kind, error.with_traceback(shown), shown)
            _say(summary)

        sys.excepthook = show
        raise ending

    def _at_exit(self) -> None:
        """The end of a program whose threads went on after its last line."""
        if self._session.closed or not self._session.is_here:
            return
        raised = self._close(None)
        if raised is not None:
            without_guard(raised)
            sys.excepthook(type(raised), raised, raised.__traceback__)
        _say(self._summary())
        if raised is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _at_signal(self, number: int) -> None:
        self._close(SystemExit(128 + number))
        _say(self._summary())

    def _summary(self, told: Finding | None = None) -> str:
        """The text of the summary, once; empty where none is wanted or none can be made."""
        if self._quiet or self._summarized or self._session.settings.policy == "off":
            return ""
        self._summarized = True
        try:
            from deviceguard.reports.terminal import render

            return render(self._session.report, sys.stderr, told)
        except Exception as problem:  # the program may have a module called rich
            from deviceguard.reports.text import report_text

            return f"{report_text(self._session.report)}\n(the summary could not be drawn: {problem!r})\n"


def _say(text: str) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody reads any more


def _execute(target: Target) -> None:
    """Run the program as ``__main__``."""
    sys.argv[0] = target.argument
    main = target.module()
    _previous.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    exec(target.code, main.__dict__)


_previous: list[object] = []
"""Keeps the ``__main__`` that was replaced: Python would clear its names, which are running."""


def _ending_of(action: Callable[[], object]) -> BaseException | None:
    try:
        action()
    except BaseException as error:
        return error
    return None


def _is_success(ending: BaseException | None) -> bool:
    return ending is None or (isinstance(ending, SystemExit) and ending.code in (None, 0))


def _threads_are_left() -> bool:
    return any(thread is not threading.current_thread() and not thread.daemon for thread in threading.enumerate())


def _say_exit(ending: SystemExit) -> None:
    """Print the text of ``sys.exit("text")`` as Python does, and leave its exit status."""
    if ending.code is None or isinstance(ending.code, int):
        return
    sys.stdout.flush()
    print(ending.code, file=sys.stderr)
    ending.code = 1
