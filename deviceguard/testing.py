"""A guard around a single test: what the pytest plugin and ``unittest`` cases have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import unittest
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard import settings as settings_module
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.findings import Finding, Severity
from deviceguard.reports.report import Report
from deviceguard.reports.text import finding_text

if TYPE_CHECKING:
    from deviceguard.session import Session
    from deviceguard.simulate import simulate

_CODE_LENGTH = len("SYN001")


class GuardedTest:
    """A guard from the set-up of a test to its end, with the report to look into and to judge.

    Some findings come only when the run ends. What the test asks for is therefore judged twice: at once, and when
    the guard closes.

    Args:
        given: settings as keyword arguments, see :class:`deviceguard.settings.Settings`. The policy is ``warn`` unless
            it is given; with ``off`` nothing is found.

    Attributes:
        report: the live report.

    Raises:
        SettingsError: an unknown setting, rule or value.
    """

    def __init__(self, **given: Any) -> None:
        loaded = settings_module.load({"policy": "warn", **given}, base=settings_module.EVERY_STEP)
        self.settings = dataclasses.replace(
            loaded, json=None, fix_diff=None
        )  # a test writes no files of its own accord
        self.report = Report()
        self._session: Session | None = None
        self._simulation: simulate | None = None
        self._unwanted: list[str] = []
        self._expected: list[tuple[str, int | None]] = []

    def open(self) -> None:
        """Begin to simulate, where a device is to be simulated, and to watch."""
        from deviceguard.session import Session
        from deviceguard.simulate import simulate

        if self.settings.policy == "off":
            return
        if self.settings.simulate is not None:
            self._simulation = simulate(self.settings.simulate)
            self._simulation.__enter__()
        self._session = Session(self.settings, report=self.report)
        self._session.open()

    def close(self, error: BaseException | None = None) -> None:
        """Stop watching and judge what the test asked for. The simulation goes on until :meth:`leave`.

        Args:
            error: the exception that ended the test, if one did.

        Raises:
            AssertionError: the test asked for a finding that did not come, or for none where there is one.
            DeviceGuardError, DeviceGuardWarning: what the policy raises for the last findings.
        """
        session, self._session = self._session, None
        if session is None:
            return
        session.close(error)
        if error is None:
            for selector in self._unwanted:
                self._refuse(selector)
            for code, line in self._expected:
                self._require(code, line)

    def leave(self) -> None:
        """End the simulation, when fixtures have been torn down, and a guard whose test was never begun."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(DeviceGuardError, DeviceGuardWarning):
                session.close(GeneratorExit())
        simulation, self._simulation = self._simulation, None
        if simulation is not None:
            simulation.__exit__(None, None, None)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, worst first."""
        return self.report.findings

    @property
    def unexpected(self) -> list[Finding]:
        """The findings that the test did not ask for with :meth:`expect`."""
        return [
            finding
            for finding in self.findings
            if not any(_is(finding, code) and line in (None, _line(finding)) for code, line in self._expected)
        ]

    def assert_none(self, selector: str = "") -> None:
        """Nothing of a rule, a family, or at all was found, and nothing will be.

        Args:
            selector: ``"SYN"``, ``"SYN001"``, or nothing for everything. Advice counts only where it is asked for by
                its full code.

        Raises:
            AssertionError: something was found; what is found later fails the test at its end.
        """
        self._refuse(selector)
        self._unwanted.append(selector)

    def expect(self, code: str, line: int | None = None) -> list[Finding]:
        """A finding of a rule has come or will come before the test ends.

        Args:
            code: ``"OPT001"``, or a family.
            line: where it must be, counted from 1; anywhere by default.

        Returns:
            those that have come already.
        """
        self._expected.append((code.upper(), line))
        return [finding for finding in self.findings if _is(finding, code) and line in (None, _line(finding))]

    def step(self) -> None:
        """Say that a training step ended, for loops without an optimizer of PyTorch."""
        from deviceguard.hub import HUB

        if self._session is not None:
            HUB.emit(self._session.engine.steps.advance())

    def _refuse(self, selector: str) -> None:
        found = [
            finding
            for finding in self.unexpected
            if _is(finding, selector) and (finding.severity is not Severity.ADVICE or len(selector) == _CODE_LENGTH)
        ]
        if found:
            raise AssertionError(f"deviceguard found what should not be there:\n{texts(found)}")

    def _require(self, code: str, line: int | None) -> None:
        of_code = [finding for finding in self.findings if _is(finding, code)]
        if any(line in (None, _line(finding)) for finding in of_code):
            return
        place = f" in line {line}" if line is not None else ""
        others = f"found instead:\n{texts(self.findings)}" if self.findings else "it found nothing"
        raise AssertionError(f"deviceguard was to find {code}{place}; {others}")


class GuardedTestCase(unittest.TestCase):
    """A ``unittest`` case whose tests are guarded; ``self.guard`` is the test's :class:`GuardedTest`.

    A case with a ``setUp`` of its own calls ``super().setUp()`` first.
    """

    deviceguard_settings: ClassVar[dict[str, Any]] = {}
    """Settings for all tests of the case: ``{"policy": "strict", "simulate": "cuda"}``."""

    guard: GuardedTest

    def setUp(self) -> None:
        """Open the guard."""
        super().setUp()
        self.guard = GuardedTest(**self.deviceguard_settings)
        self.addCleanup(self.guard.leave)
        self.guard.open()
        self.addCleanup(self.guard.close)


def texts(findings: list[Finding]) -> str:
    """The findings as a person reads them, one after the other."""
    return "\n".join(f"{finding.severity.value} {finding_text(finding)}" for finding in findings)


def _is(finding: Finding, selector: str) -> bool:
    return finding.rule.startswith(selector.upper())


def _line(finding: Finding) -> int | None:
    return finding.site.line if finding.site is not None else None
