"""``watch``: warn, never raise of its own."""

from __future__ import annotations

import warnings
from typing import Any

from deviceguard.errors import DeviceGuardWarning
from deviceguard.events import CallFailed, Event
from deviceguard.findings import Finding, Severity
from deviceguard.policies.policy import Policy
from deviceguard.reports.text import finding_text


class WarnPolicy(Policy):
    """Gives a warning under ``DeviceGuardWarning``, attributed to the user's line.

    Advice goes into the report only. So does what explains an exception that is on its way out: a warning beside a
    traceback is read after it, in the summary.
    """

    def apply(self, finding: Finding, event: Event) -> None:  # noqa: D102
        if finding.severity is Severity.ADVICE or isinstance(event, CallFailed):
            return
        site = finding.site
        registry: dict[Any, Any] = {}
        warnings.warn_explicit(
            finding_text(finding, place=False),
            DeviceGuardWarning,
            filename=site.file if site else "deviceguard",
            lineno=site.line if site else 0,
            registry=registry,
        )
