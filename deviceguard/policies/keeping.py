"""Writes the report before anything else is done about a finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deviceguard.events import Event
from deviceguard.findings import Finding
from deviceguard.policies.policy import Policy

if TYPE_CHECKING:
    from deviceguard.reports.report import Report
    from deviceguard.rules.rule import Rule


class KeepingPolicy(Policy):
    """Around another policy: a process that is killed leaves behind what was found until then.

    Only new findings are written at once, which are few; counts are brought up to date with the next of them and at
    the end of the run.

    Args:
        inner: the policy that acts.
        keep: writes the report.
    """

    def __init__(self, inner: Policy, keep: Callable[[], None]) -> None:
        self.wanted = inner.wanted  # type: ignore[misc]
        self._inner = inner
        self._keep = keep

    def attach(self, report: Report, rules: Mapping[str, Rule]) -> None:  # noqa: D102
        self._inner.attach(report, rules)

    def apply(self, finding: Finding, event: Event) -> None:  # noqa: D102
        self._keep()
        self._inner.apply(finding, event)

    def again(self, finding: Finding, event: Event) -> None:  # noqa: D102
        self._inner.again(finding, event)

    def replaced_by(self, policy: Policy) -> Policy:  # noqa: D102
        self._inner = self._inner.replaced_by(policy)
        return self
