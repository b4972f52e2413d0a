"""A guard that stands for the life of a process: what ``DEVICEGUARD=warn`` and ``deviceguard.start()`` open."""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from deviceguard.reports.report import Report

if TYPE_CHECKING:
    from deviceguard.session import Session

log = logging.getLogger("deviceguard")


class Standing:
    """The one guard of this process that no block closes.

    Attributes:
        session: the session that stands; None before ``start`` and after ``stop``.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self._process = 0
        self._last: BaseException | None = None
        self._watches_the_end = False

    def start(self, given: dict[str, Any]) -> Report:
        """Open the session, or leave the one that stands as it is; see :func:`start`."""
        from deviceguard.session import Session
        from deviceguard.settings import load

        if self.session is not None and self._process == os.getpid():
            if given:
                log.warning("deviceguard stands already; start(%s) changes nothing", ", ".join(sorted(given)))
            return self.session.report
        session = Session(load(given), whole_process=True)
        report = session.open()
        self.session, self._process = session, os.getpid()
        self._watch_the_end()
        return report

    def stop(self, error: BaseException | None = None) -> Report:
        """Close the session; see :func:`stop`."""
        session, self.session = self.session, None
        if session is None:
            return Report()
        session.close(error)
        return session.report

    def leave(self) -> None:
        """Give the guard up without a word."""
        from deviceguard.hub import HUB

        session, self.session = self.session, None
        if session is not None:
            HUB.leave(session)

    def _watch_the_end(self) -> None:
        """Judge and report when the process ends, with the exception that ends it if there is one."""
        if self._watches_the_end:
            return
        import atexit

        shown = sys.excepthook

        def remember(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> Any:
            self._last = error
            return shown(kind, error, traceback)

        sys.excepthook = remember
        atexit.register(self._end)
        self._watches_the_end = True

    def _end(self) -> None:
        from deviceguard.errors import DeviceGuardError, DeviceGuardWarning

        if self.session is None or os.getpid() != self._process:
            return  # stopped before, or a forked child
        session, report = self.session, self.session.report
        try:
            self.stop(self._last)
        except (DeviceGuardError, DeviceGuardWarning):
            pass  # too late to stop the run; the report has the finding
        except Exception as problem:
            say(f"deviceguard could not finish its report: {problem!r}")
        if not session.is_told_elsewhere:
            _show(report)


STANDING = Standing()
"""The standing guard of this process."""


def start(**settings: Any) -> Report:
    """Guard this process from here on, as ``DEVICEGUARD=warn`` does from outside; for services and notebooks.

    A guard that stands already goes on as it is. Without ``stop()`` the report is shown when the process ends.

    Args:
        settings: see :class:`deviceguard.settings.Settings`; the policy is ``warn`` unless set.

    Returns:
        the report, which grows while the process runs.

    Raises:
        SettingsError: an unknown setting, rule or value.
    """
    return STANDING.start(settings)


def stop() -> Report:
    """Judge what needed the whole run, remove every hook, and give the report; an empty one where no guard stood.

    Raises:
        DeviceGuardError, DeviceGuardWarning: what the policy raises for the last findings.
    """
    return STANDING.stop()


def say(text: str) -> None:
    """One line on stderr; nothing where stderr is closed or full."""
    try:
        print(" ".join(text.split()), file=sys.stderr)
    except Exception:
        pass  # nobody to tell; the job matters more


def _show(report: Report) -> None:
    from deviceguard.reports.terminal import show

    try:
        if len(report) and sys.stderr is not None:
            show(report, sys.stderr)
    except Exception as problem:
        say(f"deviceguard could not show its report: {problem!r}")
