"""The summary a person reads at the end of a run: worst first, one block a finding, no more than fits a screen.

In colour on a terminal, plain text elsewhere; ``NO_COLOR`` is respected.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from deviceguard.findings import Finding, Severity
from deviceguard.reports.report import Report
from deviceguard.reports.text import short_path

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.ADVICE: "bold cyan"}
_LEAST_LINES = 30
"""Lines the summary may take on a small screen."""
_PLAIN_LINES = 300
"""Lines it may take in a file."""


def show(report: Report, stream: TextIO, steps: int = 0) -> None:
    """Write the summary to a stream; arguments as in :func:`render`."""
    stream.write(render(report, stream, steps))
    stream.flush()


def render(report: Report, stream: TextIO, steps: int = 0) -> str:
    """The summary as it is to be written to a stream: with colours where the stream is a terminal that has them.

    Args:
        report: the findings.
        stream: where it will be written.
        steps: number of training steps that were watched, 0 where none was recognised.
    """
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty())
    height = max(_LEAST_LINES, console.height - 4) if console.is_terminal else _PLAIN_LINES
    with console.capture() as capture:
        for text in summary(report.findings, steps, report.internal_errors, height):
            console.print(text)
    return capture.get()


def summary(findings: list[Finding], steps: int = 0, failures: int = 0, height: int = _LEAST_LINES) -> list[Text]:
    """The lines of the summary.

    Args:
        findings: worst first.
        steps: number of training steps.
        failures: how often the guard itself failed.
        height: lines it may take; a first finding is always shown.
    """
    lines = [_head(findings, steps)]
    shown = 0
    for finding in findings:
        block = _block(finding)
        if shown and len(lines) + len(block) > height:
            break
        lines += block
        shown += 1
    if shown < len(findings):
        lines += _rest(findings[shown:])
    if failures:
        lines.append(
            _text(
                ("deviceguard itself failed ", ""), (f"{failures} time(s)", "bold"), ("; the run is not affected.", "")
            )
        )
    return lines


def _text(*parts: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)


def _head(findings: list[Finding], steps: int) -> Text:
    counts = Counter(finding.severity for finding in findings)
    parts = [_counted(counts[severity], severity.value) for severity in Severity if counts[severity]]
    watched = f" ({_counted(steps, 'training step')})" if steps else ""
    return _text(("deviceguard: ", "bold"), (", ".join(parts) or "nothing found", ""), (watched, "dim"))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 or noun == Severity.ADVICE.value else f"{number} {noun}s"


def _block(finding: Finding) -> list[Text]:
    lines = [
        _text(("", "")),
        _text(
            (finding.severity.value, _STYLES[finding.severity]),
            (f" {finding.rule} {finding.name}", "bold"),
            (_place(finding), ""),
            (_occurrences(finding), "dim"),
        ),
    ]
    site = finding.site
    if site is not None and site.source:
        lines.append(_text((f"  {site.line:>5} | ", "dim"), (site.source, "")))
    lines += [_text((f"  {line}", "")) for line in finding.message.splitlines()]
    first, *more = finding.fix.splitlines() or [""]
    lines.append(_text(("  fix: ", "green"), (first, "")))
    return lines + [_text((f"       {line}", "")) for line in more]


def _place(finding: Finding) -> str:
    site = finding.site
    if site is None:
        return ""
    function = f" in {site.function}" if site.function != "<module>" else ""
    return f"  {short_path(site.file)}:{site.line}{function}" + (f" through {site.via}" if site.via else "")


def _occurrences(finding: Finding) -> str:
    parts = [] if finding.count == 1 else [f"{finding.count} times"]
    first, last = finding.first_step, finding.last_step
    if first is not None:
        parts.append(f"step {first}" if last in (None, first) else f"steps {first}-{last}")
    return f"  ({', '.join(parts)})" if parts else ""


def _rest(findings: list[Finding]) -> list[Text]:
    counts = Counter(f"{finding.rule} {finding.name}" for finding in findings)
    listed = ", ".join(f"{name} x{number}" if number > 1 else name for name, number in counts.items())
    return [
        _text(("", "")),
        _text((f"and {len(findings)} more: {listed}", "")),
        _text(("--json FILE has them all.", "dim")),
    ]
