"""A finding as plain text: what is wrong, which object, where, what to change."""

from __future__ import annotations

import os
from collections.abc import Sequence

from deviceguard.findings import Finding, Site
from deviceguard.reports.report import Report


def finding_text(finding: Finding, place: bool = True) -> str:
    """Two to a few lines.

    Args:
        finding: what to show.
        place: whether to name file and line; a warning already does.
    """
    head = f"{finding.rule} {finding.name}: {finding.message}"
    lines = [head]
    if place and finding.site is not None:
        lines.append(f"  at {short_site(finding.site)}")
    lines.append(f"  fix: {finding.fix}")
    return "\n".join(lines)


def report_text(report: Report) -> str:
    """All findings of a report, the plainest way."""
    texts = [f"{finding.severity.value} {finding_text(finding)}" for finding in report.findings]
    return "\n".join([f"deviceguard: {len(texts)} finding(s)", *texts])


def short_site(site: Site) -> str:
    """``train.py:31  loss = criterion(out, target)`` with the path relative to the current folder."""
    text = f"{short_path(site.file)}:{site.line}"
    if site.source:
        text += f"  {site.source}"
    return text + (f"  (through {site.via})" if site.via else "")


def short_path(path: str) -> str:
    """A path relative to the current folder where that is shorter."""
    if path.startswith("<"):
        return path
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return path if relative.startswith(".." + os.sep + "..") or len(relative) >= len(path) else relative


def duration(seconds: float) -> str:
    """``2.4 s``, ``13 ms``, ``180 us``: two digits are as much as anybody reads."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.{0 if seconds >= 10 * size else 1}f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0 to 7``, ``ranks 0, 3 and 1022 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
