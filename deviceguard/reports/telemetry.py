"""OpenTelemetry: a counter of findings and a span for each new one (``pip install deviceguard[otel]``).

What collects them is the program's own OpenTelemetry SDK; without one, the API's calls do nothing.
"""

from __future__ import annotations

from typing import Any

from deviceguard.findings import Finding, Severity
from deviceguard.reports.destination import Destination
from deviceguard.reports.report import Report


class Telemetry(Destination):
    """Adds to the counter ``deviceguard.findings``; a new finding is an event of the current span, if one records.

    Args:
        name: name of the meter.

    Raises:
        ImportError: OpenTelemetry's API is not installed.
    """

    def __init__(self, name: str) -> None:
        from opentelemetry import metrics

        self._counter = metrics.get_meter(name).create_counter(
            "deviceguard.findings", unit="{finding}", description="Occurrences of what deviceguard found."
        )
        self._told: dict[object, int] = {}

    def new(self, finding: Finding) -> None:  # noqa: D102
        from opentelemetry import trace

        self._count(finding)
        trace.get_current_span().add_event(
            "deviceguard.finding",
            {**_attributes(finding), "deviceguard.message": finding.message, "deviceguard.fix": finding.fix},
        )

    def grown(self, finding: Finding) -> None:  # noqa: D102
        self._count(finding)

    def close(self, report: Report) -> None:  # noqa: D102
        for finding in report.findings:
            self._count(finding)

    def _count(self, finding: Finding) -> None:
        more = finding.count - self._told.get(finding.identity, 0)
        self._told[finding.identity] = finding.count
        if more > 0:
            self._counter.add(more, _attributes(finding))


def _attributes(finding: Finding) -> dict[str, Any]:
    site = finding.site
    return {
        "deviceguard.rule": finding.rule,
        "deviceguard.severity": (finding.severity or Severity.ADVICE).value,
        "code.file.path": site.file if site else "",
        "code.line.number": site.line if site else 0,
    }
