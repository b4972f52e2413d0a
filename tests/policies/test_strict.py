"""What ``strict`` raises, what it only warns of, and what it never raises over."""

from __future__ import annotations

import warnings

import pytest

import deviceguard
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.events import CallFailed, RunEnded
from deviceguard.findings import Finding, Severity, Site
from deviceguard.policies.strict import StrictPolicy
from tests.events import Ping


def finding(severity=Severity.ERROR, rule="DEV001"):
    return Finding(rule, "made-by-hand", severity, "it happened", "do not", Site("train.py", 3, source="x = 1"))


def test_an_error_is_raised_with_its_finding():
    error = finding()
    with pytest.raises(DeviceGuardError) as caught:
        StrictPolicy().apply(error, Ping())
    assert caught.value.finding is error
    assert str(caught.value) == "DEV001 made-by-hand: it happened\n  at train.py:3  x = 1\n  fix: do not"


def test_a_warning_warns():
    with pytest.warns(DeviceGuardWarning, match="it happened"):
        StrictPolicy().apply(finding(Severity.WARNING), Ping())


def test_advice_does_neither():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        StrictPolicy().apply(finding(Severity.ADVICE), Ping())


def test_a_warning_of_a_rule_that_says_so_is_raised(monkeypatch):
    from deviceguard.rules.registry import rule_class

    monkeypatch.setattr(rule_class("DEV001"), "raises_in_strict", True)
    with pytest.raises(DeviceGuardError):
        StrictPolicy().apply(finding(Severity.WARNING), Ping())


def test_the_exception_it_explains_becomes_the_cause():
    original = RuntimeError("expected all tensors to be on the same device")
    failed = CallFailed.__new__(CallFailed)
    failed.error = original
    with pytest.raises(DeviceGuardError) as caught:
        StrictPolicy().apply(finding(), failed)
    assert caught.value.__cause__ is original


def test_nothing_is_raised_over_an_exception_on_its_way_out():
    with pytest.warns(DeviceGuardWarning):
        StrictPolicy().apply(finding(), RunEnded(ValueError()))


def test_an_error_at_a_good_end_is_raised():
    with pytest.raises(DeviceGuardError):
        StrictPolicy().apply(finding(), RunEnded())


def test_the_error_is_a_runtime_error_as_pytorchs_own():
    assert issubclass(deviceguard.DeviceGuardError, RuntimeError)
