"""The summary a person reads at the end of a run: worst first, one block a finding, no more than fits a screen.

In colour on a terminal, plain text elsewhere; ``NO_COLOR`` is respected.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from deviceguard.findings import Finding, Severity
from deviceguard.reports.report import Report
from deviceguard.reports.text import duration, ranks_text, short_path

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from deviceguard.step_times import StepTimeSummary

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.ADVICE: "bold cyan"}
_LEAST_LINES = 24
"""Lines the summary may take on a screen that is smaller than that."""
_LEAST_SHARE = 0.005
_PARTS = {
    "data": "waiting for data",
    "upload": "upload",
    "host": "host work (Python, launches)",
    "blocked": "blocked on the device",
    "optimizer": "optimizer",
}
_PLAIN_LINES = 300
"""Lines it may take in a file."""


def show(report: Report, stream: TextIO) -> None:
    """Write the summary to a stream."""
    stream.write(render(report, stream))
    stream.flush()


def render(report: Report, stream: TextIO, told: Finding | None = None) -> str:
    """The summary as it is to be written to a stream: with colours where the stream is a terminal that has them.

    Args:
        report: the findings.
        stream: where it will be written.
        told: a finding the person has just read, in the traceback above.
    """
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    findings = [finding for finding in report.findings if told is None or finding.identity != told.identity]
    with console.capture() as capture:
        if findings:
            _print(console, [(_text(("", "")), 0)])
        _print(console, [(_head(report, is_told=told is not None), 0)])
        _print(console, list(_time(report.time)))
        _print_blocks(console, findings)
        _print(console, list(_repairs(report)))
        if report.internal_errors:
            _print(console, [(_failures(report.internal_errors), 0)])
    return capture.get()


Line = tuple["Text", int]
"""A line and the columns it is indented by, which hold for what it wraps to."""


def _print(console: Console, lines: Sequence[Line]) -> None:
    from rich.padding import Padding

    for text, indentation in lines:
        if console.is_terminal:
            console.print(Padding(text, (0, 0, 0, indentation), expand=False) if text else "")
        else:
            console.print(" " * indentation, text, sep="", soft_wrap=True)


def _print_blocks(console: Console, findings: list[Finding]) -> None:
    room = max(_LEAST_LINES, console.height - 3) if console.is_terminal else _PLAIN_LINES
    for number, finding in enumerate(findings):
        block = list(_block(finding))
        room -= sum(1 + (len(text) + indentation) // console.width for text, indentation in block)
        if number and room < 0:
            _print(console, _rest(findings[number:]))
            return
        _print(console, block)


def _repairs(report: Report) -> Iterator[Line]:
    """What was repaired, with its price, and what else is to be said at the end."""
    if report.repairs:
        yield _text(("", "")), 0
        yield _text(("repaired", "bold green"), (" in this run; the edits above make it unnecessary:", "")), 0
    for repair in report.repairs:
        place = f"  {short_path(repair.site.file)}:{repair.site.line}" if repair.site is not None else ""
        times = f"{repair.count} times" if repair.count > 1 else ""
        facts = ", ".join(part for part in (times, repair.price) if part)
        yield (
            _text(
                (repair.name, "bold"), (f": {repair.what}", ""), (f" ({facts})" if facts else "", ""), (place, "dim")
            ),
            2,
        )
    for note in report.notes:
        yield _text(("", "")), 0
        yield _text((note, "")), 0


def _text(*parts: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)


def _head(report: Report, is_told: bool) -> Text:
    findings, steps = report.findings, report.steps
    counts = Counter(finding.severity for finding in findings)
    parts = [_counted(counts[severity], severity.value) for severity in Severity if counts[severity]]
    found = ", ".join(parts) or "nothing found"
    watched = f" in {_counted(steps, 'training step')}" if steps else ""
    if report.steps_watched < steps:
        watched += f", of which {report.steps_watched} were looked at and are counted below"
    above = (" (told above)" if len(findings) == 1 else " (one told above)") if is_told else ""
    return _text(("deviceguard: ", "bold"), (found, "bold" if parts else ""), (watched, ""), (above, "dim"))


def _time(time: StepTimeSummary | None) -> Iterator[Line]:
    """Where a step goes, largest part first."""
    if time is None or not time.mean.total:
        return
    parts = dataclasses.asdict(time.mean)
    shares = sorted(((seconds / time.mean.total, name) for name, seconds in parts.items()), reverse=True)
    listed = ", ".join(f"{_PARTS[name]} {share:.0%}" for share, name in shares if share >= _LEAST_SHARE)
    head = f"a step takes {duration(time.mean.total)} (mean of {time.steps}): "
    yield _text((head, "bold"), (listed, "")), 2
    if time.device is not None:
        yield _text((f"meanwhile the device was busy {time.device:.0%} of the time", "")), 2
    if time.estimated:
        yield _text(("the device is simulated: uploads and waits are estimates, and its work is the host's", "dim")), 2


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 or noun == Severity.ADVICE.value else f"{number} {noun}s"


def _failures(number: int) -> Text:
    times = "once" if number == 1 else f"{number} times"
    return _text((f"deviceguard itself failed {times}; the run was not affected by it.", "dim"))


def _block(finding: Finding) -> Iterator[Line]:
    yield _text(("", "")), 0
    severity = (finding.severity.value, _STYLES[finding.severity])
    name = (f" {finding.rule} {finding.name}", "bold")
    yield _text(severity, name, (_place(finding), ""), (_occurrences(finding), "dim")), 0
    if finding.site is not None and finding.site.source:
        source = _text((f"{finding.site.line:>4} | ", "dim"), (finding.site.source, ""))
        source.no_wrap, source.overflow = True, "ellipsis"
        yield source, 0
    for line in finding.message.splitlines():
        yield _text((line, "")), 2
    first, *more = finding.fix.splitlines() or [""]
    yield _text(("fix: ", "bold green"), (first, "")), 2
    for line in more:
        yield _text((line, "")), 7


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
        parts.append(f"step {first}" if last in (None, first) else f"steps {first} to {last}")
    if finding.ranks:
        parts.append(ranks_text(finding.ranks))
    if finding.seconds:
        parts.append(f"{'about ' if finding.is_estimate else ''}{duration(finding.seconds)} in all")
    return f"  ({', '.join(parts)})" if parts else ""


def _rest(findings: list[Finding]) -> list[Line]:
    counts = Counter(f"{finding.rule} {finding.name}" for finding in findings)
    listed = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in counts.items())
    return [(_text(("", "")), 0), (_text((f"and {len(findings)} more, which --json FILE has: {listed}", "")), 0)]
