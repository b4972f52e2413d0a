"""A file in Prometheus' text format, for the textfile collector of its node exporter.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable

from deviceguard.findings import Finding
from deviceguard.reports.destination import Destination
from deviceguard.reports.json_report import replace_text
from deviceguard.reports.report import Report


class PrometheusFile(Destination):
    """Keeps the file up to date: whole after every new finding, at powers of ten, and at the end.

    Args:
        path: the file; the collector reads names that end in ``.prom``.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._latest: dict[object, Finding] = {}

    def new(self, finding: Finding) -> None:  # noqa: D102
        self._latest[finding.identity] = finding
        self._write(self._latest.values())

    def grown(self, finding: Finding) -> None:  # noqa: D102
        self.new(finding)

    def close(self, report: Report) -> None:  # noqa: D102
        self._write(report.findings)

    def _write(self, findings: Iterable[Finding]) -> None:
        replace_text(self._path, exposition(findings))


def exposition(findings: Iterable[Finding]) -> str:
    """The findings as one counter with the labels ``rule``, ``name``, ``severity``, ``file`` and ``line``."""
    lines = [
        "# HELP deviceguard_findings_total Occurrences of what deviceguard found.",
        "# TYPE deviceguard_findings_total counter",
    ]
    counts: dict[str, int] = {}
    for finding in findings:
        site = finding.site
        labels = {
            "rule": finding.rule,
            "name": finding.name,
            "severity": finding.severity.value,
            "file": site.file if site else "",
            "line": str(site.line) if site else "",
        }
        text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        counts[text] = counts.get(text, 0) + finding.count
    lines += [f"deviceguard_findings_total{{{labels}}} {count}" for labels, count in counts.items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
