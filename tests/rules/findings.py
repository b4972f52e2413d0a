"""What the tests of single rules ask of a report."""

from __future__ import annotations

from typing import Any

from deviceguard.findings import Finding
from tests.scripts import codes, line_of, loud, run_script

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""


def run(source: str, simulate: str | None = "cuda", **given: Any) -> Any:
    """Run a script that begins with the usual imports; it may end with the exception PyTorch raises."""
    given.setdefault("may_raise", (RuntimeError, ValueError, TypeError, IndexError))
    given.setdefault("select", "DEV,DTY")
    return run_script(HEAD + source, simulate, **given)


def one(source: str, code: str, simulate: str | None = "cuda", **given: Any) -> Finding:
    """The one finding of a rule in a script in which no other rule of DEV and DTY may speak."""
    report = run(source, simulate, **given)
    assert report.internal_errors == 0
    others = [found for found in codes(report) if found[:3] in ("DEV", "DTY") and found != code]
    assert others == [], loud(report)
    found = report.of(code)
    assert len(found) == 1, [(str(f.site), f.message) for f in report.findings]
    return found[0]


def silent(source: str, simulate: str | None = "cuda", **given: Any) -> None:
    """Assert that a script ends well and that no rule of DEV and DTY warns."""
    given.setdefault("select", "DEV,DTY")
    report = run_script(HEAD + source, simulate, **given)
    assert report.internal_errors == 0
    assert [
        f"{f.rule} {f.message}" for f in report.findings if f.rule[:3] in ("DEV", "DTY") and f.severity.rank < 2
    ] == []


def line(source: str, text: str, occurrence: int = 1) -> int:
    """The line of a text in a script as it is run."""
    return line_of(HEAD + source, text, occurrence)


def names(finding: Finding) -> list[str]:
    """The names of a finding's subjects."""
    return [subject.name for subject in finding.subjects]
