"""What the tests of the OPT and CPY rules ask of a page's example and of correct code."""

from __future__ import annotations

from deviceguard.rules.page import page_of
from deviceguard.rules.registry import rule_class
from tests.scripts import loud, run_script

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"


def assert_page_example(code, *, severity, names, line, fix):
    """The example of a rule's page gives one finding with these names, at this line, with this edit."""
    source = page_of(rule_class(code)).example

    report = run_script(source, "cuda", select=[code], may_raise=Exception)

    assert report.internal_errors == 0
    found = [finding for finding in report.findings if finding.rule == code]
    assert len(found) == 1, [finding.message for finding in report.findings]
    finding = found[0]
    assert finding.severity.value == severity
    assert set(names) <= {subject.name for subject in finding.subjects}
    assert line in source.splitlines()[finding.site.line - 1]
    assert fix in finding.fix
    assert finding.message.count("\n") < 3
    assert all(name in finding.message for name in names)


def assert_silent(code, source):
    """Neither this rule nor its family says anything at warning or above, nor does the rule give advice."""
    report = run_script(HEAD + source, "cuda", select=[code[:3]])

    assert loud(report) == []
    assert [finding.message for finding in report.findings if finding.rule == code] == []
    assert report.internal_errors == 0
