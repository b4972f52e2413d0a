"""Training loops for the tests of the rules about rates, and what these tests ask of a report."""

from __future__ import annotations

import textwrap
from typing import Any

from deviceguard.findings import Finding
from deviceguard.reports.report import Report
from tests.scripts import line_of, run_script

_LOOP = """
import time
import torch
from torch import nn
from torch.nn import functional as F

{before}

net = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
total = 0
for step in range({steps}):
    x = torch.randn(16, 8, device="cuda")
    output = net(x)
    loss = output.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{body}
{after}
"""


def training(body: str, *, before: str = "", after: str = "", steps: int = 10) -> str:
    """A script that trains, with ``body`` at the end of each step."""
    inner = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return _LOOP.format(body=inner, before=textwrap.dedent(before), after=textwrap.dedent(after), steps=steps)


def found(source: str, code: str, **given: Any) -> Finding:
    """The one finding of a rule in a script."""
    report = run_script(source, **given)
    findings = report.of(code)
    assert report.internal_errors == 0
    assert len(findings) == 1, texts(report)
    return findings[0]


def quiet(source: str, code: str, **given: Any) -> None:
    """Assert that a script ends well and that neither the rule speaks nor its family warns."""
    report = run_script(source, **given)
    assert report.internal_errors == 0
    loud = [f for f in report.of(code[:3]) if f.rule == code or f.severity.rank < 2]
    assert loud == [], texts(report)


def at(source: str, text: str) -> int:
    """The line of a text in a script."""
    return line_of(source, text)


def cost(finding: Finding) -> dict[str, float]:
    """The finding's costs by name."""
    return dict(finding.cost)


def texts(report: Report) -> list[str]:
    """All findings, for the message of a failed test."""
    return [f"{f.severity.value} {f.rule} {f.site} {f.message}" for f in report.findings]
