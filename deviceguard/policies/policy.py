"""The base of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import Event
from deviceguard.findings import Finding

if TYPE_CHECKING:
    from deviceguard.reports.report import Report
    from deviceguard.rules.rule import Rule


class Policy:
    """Decides what happens with a finding. The base only records.

    Attributes:
        wanted: events the policy itself needs.
    """

    wanted: ClassVar[frozenset[type[Event]]] = frozenset()

    def attach(self, report: Report, rules: Mapping[str, Rule]) -> None:
        """Meet the session: its report, and its rules by code."""

    def apply(self, finding: Finding, event: Event) -> None:
        """Act on a new finding.

        Args:
            finding: complete, and already in the report.
            event: the event that led to it.

        Raises:
            DeviceGuardError, DeviceGuardWarning: where the policy is to raise.
        """

    def again(self, finding: Finding, event: Event) -> None:
        """Act on a finding that was seen before; arguments as in :meth:`apply`."""

    def replaced_by(self, policy: Policy) -> Policy:
        """What stands here once another policy acts: that one, with what is around this one around it."""
        return policy
