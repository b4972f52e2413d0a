"""``watch``: warn, never raise of its own."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from deviceguard.errors import DeviceGuardWarning
from deviceguard.events import CallFailed, Event
from deviceguard.findings import Finding, Severity
from deviceguard.policies.policy import Policy
from deviceguard.policies.warning_options import adopt
from deviceguard.reports.text import finding_text


class WarnPolicy(Policy):
    """Gives a warning under ``DeviceGuardWarning``, attributed to the user's line.

    Advice goes into the report only. So does what explains an exception that is on its way out: a warning beside a
    traceback is read after it, in the summary.
    """

    def __init__(self) -> None:
        adopt()

    def apply(self, finding: Finding, event: Event) -> None:  # noqa: D102
        explains = isinstance(event, CallFailed) and event.error is not None
        if finding.severity is not Severity.ADVICE and not explains:
            self.tell(finding)

    def tell(self, finding: Finding, more: str = "") -> None:
        """Give the warning.

        Args:
            finding: what is wrong.
            more: a line to add to it.
        """
        site = finding.site
        file = site.file if site else "deviceguard"
        registry: dict[Any, Any] = {}  # a fresh one: two findings on a line are not one warning
        warnings.warn_explicit(
            finding_text(finding, place=False) + more,
            DeviceGuardWarning,
            filename=file,
            lineno=site.line if site else 0,
            module=_module_of(file),
            registry=registry,
        )


def _module_of(file: str) -> str:
    """The name of the module that was loaded from a file, as filters of warnings name it."""
    for name, module in list(sys.modules.items()):
        try:
            if vars(module).get("__file__") == file:
                return name
        except TypeError:
            continue  # not everything in sys.modules is a module
    return file.removesuffix(".py") or "<unknown>"
