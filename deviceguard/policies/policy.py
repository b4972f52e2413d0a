"""The base of policies."""

from __future__ import annotations

from deviceguard.events import Event
from deviceguard.findings import Finding


class Policy:
    """Decides what happens with a finding that is new. The base only records."""

    def apply(self, finding: Finding, event: Event) -> None:
        """Act on a new finding.

        Args:
            finding: complete, and already in the report.
            event: the event that led to it.

        Raises:
            DeviceGuardError, DeviceGuardWarning: where the policy is to raise.
        """
