"""The summary a person reads at the end of a run."""

from __future__ import annotations

from typing import TextIO

from deviceguard.reports.report import Report
from deviceguard.reports.text import finding_text


def show(report: Report, stream: TextIO) -> None:
    """Write the summary to a stream."""
    for finding in report.findings:
        print(f"{finding.severity.value} {finding_text(finding)}", file=stream)
