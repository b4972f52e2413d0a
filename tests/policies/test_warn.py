"""The warnings: whose they are, which filters catch them, and that none hides another."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

import deviceguard
from deviceguard.events import CallFailed, RunEnded
from deviceguard.findings import Finding, Severity, Site
from deviceguard.policies.warn import WarnPolicy
from tests.events import Ping


def finding(line=1, message="it happened", severity=Severity.WARNING, file=__file__, **fields):
    return Finding("DEV001", "made-by-hand", severity, message, "do not", Site(file, line, source="x = 1"), **fields)


def given(*findings, action="always", event=None, **filters):
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        warnings.filterwarnings(action, category=deviceguard.DeviceGuardWarning, **filters)
        for one in findings:
            WarnPolicy().apply(one, event or Ping())
    return caught


def test_a_warning_stands_at_the_users_line():
    (warning,) = given(finding(line=7))
    assert (warning.filename, warning.lineno) == (__file__, 7)
    assert warning.category is deviceguard.DeviceGuardWarning
    assert str(warning.message) == "DEV001 made-by-hand: it happened\n  fix: do not"


@pytest.mark.parametrize("action", ["default", "once", "module", "always"])
def test_no_filter_hides_a_finding_behind_another(action):
    assert len(given(finding(message="one"), finding(message="two"), finding(line=2), action=action)) == 3


def test_filters_by_module_work():
    assert len(given(finding(), module=__name__.replace(".", r"\."))) == 1
    assert given(finding(), module="other") == []


def test_a_file_no_module_was_loaded_from():
    (warning,) = given(finding(file="<string>"))
    assert warning.filename == "<string>"


def test_a_finding_without_a_site():
    (warning,) = given(Finding("DEV001", "made-by-hand", Severity.WARNING, "it happened", "do not"))
    assert warning.filename == "deviceguard"


def test_advice_is_for_the_report_only():
    assert given(finding(severity=Severity.ADVICE)) == []


def test_what_explains_a_traceback_is_read_after_it():
    failed = CallFailed.__new__(CallFailed)
    failed.error = RuntimeError()
    assert given(finding(severity=Severity.ERROR), event=failed) == []


def test_findings_at_the_end_warn():
    assert len(given(finding(), event=RunEnded())) == 1


def test_as_an_error_it_is_raised():
    with pytest.raises(deviceguard.DeviceGuardWarning, match="it happened"):
        given(finding(), action="error")


@pytest.mark.parametrize(
    ("option", "ends_with"),
    [
        ("error::deviceguard.DeviceGuardWarning", "deviceguard.DeviceGuardWarning: DEV001"),
        ("error::deviceguard.errors.DeviceGuardWarning", "deviceguard.DeviceGuardWarning: DEV001"),
        ("e:DEV001:deviceguard.DeviceGuardWarning:train:3", "deviceguard.DeviceGuardWarning: DEV001"),
        ("error::deviceguard.DeviceGuardWarning:other", "train.py:3: DeviceGuardWarning: DEV001"),
        ("nonsense::deviceguard.DeviceGuardWarning", "train.py:3: DeviceGuardWarning: DEV001"),
        ("error", "deviceguard.DeviceGuardWarning: DEV001"),
    ],
)
def test_the_options_of_the_interpreter_count(option, ends_with):
    code = """
from deviceguard.findings import Finding, Severity, Site
from deviceguard.policies.warn import WarnPolicy
WarnPolicy().apply(Finding("DEV001", "made-by-hand", Severity.WARNING, "it", "do not", Site("train.py", 3)), None)
"""
    done = subprocess.run([sys.executable, "-W", option, "-c", code], capture_output=True, text=True)
    assert f"{ends_with} made-by-hand: it" in done.stderr
