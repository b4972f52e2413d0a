"""Rules, sessions and events made by hand, for tests of what stands between sources and reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from deviceguard.engine import Engine
from deviceguard.events import Event
from deviceguard.findings import Finding, Severity, Site
from deviceguard.policies.policy import Policy
from deviceguard.reports.report import Report
from deviceguard.rules.rule import Rule, on
from deviceguard.settings import Settings


@dataclasses.dataclass(slots=True, eq=False)
class Ping(Event):
    """Something happened.

    Attributes:
        line: where.
    """

    line: int = 1


@dataclasses.dataclass(slots=True, eq=False)
class Read(Ping):
    """Something that counts in itself, as a host read does."""

    occurrence = True


class Recording(Policy):
    """Keeps what it is given, and raises what it is told to raise."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.applied: list[Finding] = []
        self.error = error

    def apply(self, finding: Finding, event: Event) -> None:
        self.applied.append(finding)
        if self.error is not None:
            raise self.error


def rule_made_of(
    handler: Callable[[Rule, Any], Iterator[Finding] | None],
    *kinds: type[Event],
    code: str = "DEV001",
    severity: Severity = Severity.WARNING,
) -> type[Rule]:
    """A rule whose only handler is a function."""

    class Made(Rule):
        handle = on(*(kinds or (Ping,)))(handler)

    Made.code, Made.name, Made.severity, Made.since = code, "made-by-hand", severity, "0.1.0"
    return Made


def pinging(rule: Rule, event: Any) -> Iterator[Finding]:
    """A handler that reports the line of the event."""
    yield rule.finding("it happened", "do not", site=Site("train.py", event.line, source="x = 1"))


def crashing(rule: Rule, event: Any) -> Iterator[Finding]:
    """A handler with a bug."""
    raise ZeroDivisionError("a bug in the rule")


def engine_of(*rules: type[Rule], policy: Policy | None = None, **settings: Any) -> Engine:
    """An engine with these rules alone."""
    return Engine(Settings(**settings), rules, policy or Recording(), Report())
