"""``strict``: raise on the first error-level finding."""

from __future__ import annotations

from typing import NoReturn

from deviceguard.errors import DeviceGuardError
from deviceguard.events import CallFailed, Event, RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.policies.policy import Policy
from deviceguard.policies.warn import WarnPolicy
from deviceguard.reports.text import finding_text
from deviceguard.rules.registry import rule_class


class StrictPolicy(Policy):
    """Raises for errors, and for warnings of rules that say so; warns for the rest.

    Where the finding explains an exception of PyTorch's, that one becomes the cause. Where another exception is
    already leaving the block, nothing is raised over it.
    """

    def __init__(self) -> None:
        self._softly = WarnPolicy()

    def apply(self, finding: Finding, event: Event) -> None:  # noqa: D102
        raises = finding.severity is Severity.ERROR or rule_class(finding.rule).raises_in_strict
        if isinstance(event, RunEnded) and event.error is not None:
            raises = False
        if not raises:
            self._softly.apply(finding, event)
            return
        self._raise(finding, event)

    def again(self, finding: Finding, event: Event) -> None:  # noqa: D102
        if finding.severity is Severity.ERROR and rule_class(finding.rule).raises_again:
            self._raise(finding, event)

    def _raise(self, finding: Finding, event: Event) -> NoReturn:
        error = DeviceGuardError(finding_text(finding), finding)
        if isinstance(event, CallFailed):
            raise error from event.error
        raise error
