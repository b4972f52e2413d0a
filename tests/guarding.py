"""A guard whose only rule reports each ping, at the user's line that pings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deviceguard.events import Event
from deviceguard.findings import Finding, Severity
from deviceguard.hub import HUB
from deviceguard.rules.rule import Rule
from tests.events import Ping, Read, rule_made_of


def answer(rule: Rule, event: Any) -> Iterator[Finding]:
    """The handler: the message names the line the event was given."""
    yield rule.finding(f"ping {event.line}", "stop it", key=str(event.line))


def only_pings(
    monkeypatch: pytest.MonkeyPatch,
    *kinds: type[Event],
    severity: Severity = Severity.ERROR,
    handler: Callable[[Rule, Any], Any] = answer,
) -> None:
    """Let every guard of the test have this rule alone."""
    rule = rule_made_of(handler, *(kinds or (Ping, Read)), severity=severity)
    monkeypatch.setattr("deviceguard.session.rule_classes", lambda codes: [rule])


def ping(number: int = 1) -> None:
    """Something happens that the rule reports."""
    HUB.emit(Ping(number))


def read(number: int = 1) -> None:
    """An occurrence that the rule reports."""
    HUB.emit(Read(number))
