"""One record of Python's ``logging`` for each finding, with its fields as ``extra``."""

from __future__ import annotations

import logging
from typing import Any

from deviceguard.findings import Finding, Severity
from deviceguard.reports.destination import Destination
from deviceguard.reports.json_report import finding_dict
from deviceguard.reports.text import finding_text

_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.ADVICE: logging.INFO}


class LogRecords(Destination):
    """Writes to a logger.

    The record's ``deviceguard`` attribute has what the JSON report has of the finding; ``deviceguard_rule`` and
    ``deviceguard_count`` are there for formatters that know no nesting.

    Args:
        name: the logger's name.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def new(self, finding: Finding) -> None:  # noqa: D102
        self._write(finding, finding_text(finding))

    def grown(self, finding: Finding) -> None:  # noqa: D102
        self._write(finding, f"{finding.rule} {finding.name} at {finding.site}: {finding.count} times so far")

    def _write(self, finding: Finding, text: str) -> None:
        extra: dict[str, Any] = {
            "deviceguard": finding_dict(finding),
            "deviceguard_rule": finding.rule,
            "deviceguard_count": finding.count,
        }
        self._logger.log(_LEVELS[finding.severity], "%s", text, extra=extra)
