"""The session of a run from the command line: it opens when the program imports torch and is closed once."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING

from deviceguard.cli.torch_import import when_imported
from deviceguard.reports.report import Report
from deviceguard.settings import Settings

if TYPE_CHECKING:
    from deviceguard.session import Session

log = logging.getLogger("deviceguard")


class LateSession:
    """Opens simulation and guard, in this order, and closes the guard.

    The simulation is not left: the program's ``atexit`` handlers still live on its device.

    Args:
        settings: the settings in force.

    Attributes:
        report: what was found; empty where torch was never imported.
        closed: True once the guard has judged and written its report.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.closed = False
        self.report = Report()
        self._session: Session | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def is_here(self) -> bool:
        """False in a forked child of the process that was started."""
        return os.getpid() == self._process

    def prepare(self) -> None:
        """Open as soon as torch is there."""
        when_imported("torch", self._begin)

    def _begin(self) -> None:
        if self.settings.simulate is not None:
            from deviceguard.simulate import simulate

            simulation = simulate(self.settings.simulate)
            simulation.__enter__()
            atexit.register(simulation.__exit__, None, None, None)
        if not self.is_here or self.closed:
            return
        try:
            self._open()
        except Exception:
            self.report.internal_errors += 1
            log.warning("deviceguard could not start; the run goes on without it", exc_info=True)

    def _open(self) -> None:
        from deviceguard.session import Session

        session = Session(self.settings, whole_process=True, report=self.report)
        session.open()
        self._session = session

    def close(self, error: BaseException | None) -> None:
        """Judge what needed the whole run and write the report. Only the first call does.

        Args:
            error: the exception that ends the run, or None.

        Raises:
            DeviceGuardError, DeviceGuardWarning: what the policy raises for the last findings.
        """
        with self._lock:
            if self.closed or not self.is_here:
                return
            self.closed = True
            if self._session is not None:
                self._session.close(error)
            elif self.settings.policy != "off":
                self._write_empty()

    def _write_empty(self) -> None:
        if self.settings.json is None:
            return
        from deviceguard.reports.json_report import write

        try:
            write(self.report, self.settings.json)
        except OSError as problem:
            log.warning("deviceguard could not write %s: %s", self.settings.json, problem)
