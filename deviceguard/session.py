"""One guarded stretch of a run: settings, rules, report and policy, from entry to exit. All ways in end here."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator

from deviceguard.control import Control
from deviceguard.engine import Engine, log
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.events import RunEnded, RunStarted
from deviceguard.hub import HUB
from deviceguard.policies.keeping import KeepingPolicy
from deviceguard.policies.migrate import MigratePolicy
from deviceguard.policies.policy import Policy
from deviceguard.policies.publishing import PublishingPolicy
from deviceguard.policies.strict import StrictPolicy
from deviceguard.policies.warn import WarnPolicy
from deviceguard.reports.destination import Destination
from deviceguard.reports.json_lines import JsonLines
from deviceguard.reports.log_records import LogRecords
from deviceguard.reports.prometheus import PrometheusFile
from deviceguard.reports.ranks import Ranks
from deviceguard.reports.report import Report
from deviceguard.reports.telemetry import Telemetry
from deviceguard.rules.registry import rule_classes
from deviceguard.rules.rule import Rule
from deviceguard.settings import Settings

_POLICIES: dict[str, type[Policy]] = {"warn": WarnPolicy, "strict": StrictPolicy, "migrate": MigratePolicy}


_DESTINATIONS: dict[str, Callable[[str], Destination]] = {
    "json_lines": JsonLines,
    "logger": LogRecords,
    "prometheus": PrometheusFile,
    "telemetry": Telemetry,
}
"""What takes findings while the run goes on, by the setting that asks for it."""


class Session:
    """Opened by ``open``, closed by ``close``; the guard in between.

    Args:
        settings: the settings in force. With policy ``off`` nothing is installed and the report stays empty.
        whole_process: True for a session that hears of every thread's events whatever other sessions are open.
        report: where findings go; a new report by default. What is in it already is not said again.

    Attributes:
        thread: identity of the thread that opened it.
    """

    def __init__(self, settings: Settings, whole_process: bool = False, report: Report | None = None) -> None:
        self.settings = settings
        self.report = Report() if report is None else report
        self.whole_process = whole_process
        self.thread = 0
        self._pid = os.getpid()
        self._is_unwritable = False
        self.ranks = Ranks(self.report, self._write) if whole_process else None
        self._publishing: PublishingPolicy | None = None
        self._control: Control | None = None
        self.engine = Engine(settings, self._rules(), self._policy(settings.policy), self.report)

    def _policy(self, name: str) -> Policy:
        """The policy of that name, with what keeps and sends findings around it."""
        policy = _POLICIES.get(name, Policy)()
        if self.settings.json is not None:
            policy = KeepingPolicy(policy, self._write)
        destinations = list(self._destinations())
        if destinations:
            policy = self._publishing = PublishingPolicy(policy, destinations)
        return policy

    def _destinations(self) -> Iterator[Destination]:
        if self.ranks is not None:
            yield self.ranks
        for name, make in _DESTINATIONS.items():
            value = getattr(self.settings, name)
            if value is None:
                continue
            try:
                yield make(value)
            except Exception as problem:
                log.warning("deviceguard leaves %s out: %s", name, problem)

    def _rules(self) -> list[type[Rule]]:
        """The rules that are on; one that cannot be loaded is left out, the others do their work."""
        found: list[type[Rule]] = []
        for code in sorted(self.settings.codes()):
            try:
                found += rule_classes([code])
            except Exception:
                self.report.internal_errors += 1
                log.warning("deviceguard could not load rule %s; it is left out", code, exc_info=True)
        return list(dict.fromkeys(found))

    def open(self) -> Report:
        """Install the sources and start judging."""
        if self.settings.policy != "off":
            self.thread = threading.get_ident()
            self._begin()
            if self.settings.control is not None:
                self._control = Control(self.settings.control, self)
                self._control.start()
        return self.report

    def _begin(self) -> None:
        try:
            if self.ranks is not None:
                self.ranks.open()
            HUB.enter(self)
            HUB.emit(RunStarted())
        except (DeviceGuardError, DeviceGuardWarning):
            raise
        except Exception:
            self.engine.failed("the start of the run", None)

    def close(self, error: BaseException | None = None) -> None:
        """Judge what needed the whole run, remove the sources, write the report.

        Args:
            error: the exception that leaves the block, if one does.

        Raises:
            DeviceGuardError, DeviceGuardWarning: what the policy raises for the last findings.
        """
        if self.settings.policy == "off":
            return
        if os.getpid() != self._pid:
            HUB.leave(self)  # a forked child leaves its parent's block: the judging is the parent's
            return
        failure = None if _is_planned(error) else error
        try:
            with HUB.at_work():
                try:
                    self._explain(failure)
                finally:
                    self.engine.handle(RunEnded(failure))
        except (DeviceGuardError, DeviceGuardWarning):
            raise
        except Exception:
            self.engine.failed("the end of the run", None)
        finally:
            self._leave()
            if self._control is not None:
                self._control.stop()
            if self._publishing is not None:
                self._publishing.close()
            self._write()
            self._write_fixes()

    def _leave(self) -> None:
        try:
            HUB.leave(self)
        except Exception:
            self.engine.failed("removing the sources", None)

    def _explain(self, error: BaseException | None) -> None:
        if error is None:
            return
        from deviceguard.sources.post_mortem import examine

        try:
            event = examine(error)
        except Exception:
            self.report.internal_errors += 1
            log.warning("deviceguard could not examine %s", type(error).__name__, exc_info=True)
            return
        if event is not None:
            self.engine.handle(event)

    def change_policy(self, name: str) -> None:
        """Judge by another policy from the next finding on; every step is looked at as before, or not, as before.

        Args:
            name: ``warn`` or ``strict``.
        """
        self.engine.change_policy(_POLICIES[name]())

    def dump(self) -> None:
        """Write the present report to its file, or show it on stderr where it has none."""
        if self.settings.json is not None:
            self._write()
            return
        from deviceguard.reports.terminal import show

        if sys.stderr is not None:
            show(self.report, sys.stderr)

    def _is_bystander(self, path: str) -> bool:
        """True for a process in which nothing happened, such as a launcher: it leaves the others' report alone."""
        nothing = not len(self.report) and not self.report.steps
        return self.whole_process and nothing and pathlib.Path(path).exists()

    def _write_fixes(self) -> None:
        if self.settings.fix_diff is None:
            return
        from deviceguard.fixes.diff import write

        try:
            self.report.notes.append(write(self.report.findings, self.settings.fix_diff))
        except Exception:  # what cannot be edited is no reason to end a run otherwise
            log.warning("deviceguard could not write %s", self.settings.fix_diff, exc_info=True)

    @property
    def is_told_elsewhere(self) -> bool:
        """True where the first rank of the job has what was found here."""
        return self.ranks is not None and bool(self.ranks.rank) and self.ranks.published

    def _write(self) -> None:
        path = self.settings.json
        if path is None or self.is_told_elsewhere or self._is_bystander(path):
            return
        from deviceguard.reports.json_report import write

        if self.ranks is not None and self.ranks.rank:
            if not len(self.report):
                return
            path = f"{path}.rank{self.ranks.rank}"
        try:
            write(self.report, path)
        except Exception as problem:  # a full disk, a folder that is gone, a value that cannot be written
            if not self._is_unwritable:
                log.warning("deviceguard could not write %s: %s", self.settings.json, problem)
            self._is_unwritable = True


def _is_planned(error: BaseException | None) -> bool:
    """True for the exceptions a run ends well with: ``sys.exit()`` without a status, a generator that is closed."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))
