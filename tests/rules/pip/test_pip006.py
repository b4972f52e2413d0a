from __future__ import annotations

from tests.rules.loops import at, cost, found, quiet
from tests.rules.pip.test_pip001 import QUICK, SLOW


def test_mostly_waiting():
    finding = found(SLOW, "PIP006")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(SLOW, "for rows in")
    assert "of the time of this loop is spent waiting for the loader over Slow" in finding.message
    assert "times as fast, if the wait disappears" in finding.fix
    assert cost(finding)["share"] > 0.3


def test_quick_data_is_silent():
    quiet(QUICK, "PIP006")


def test_few_batches_are_silent():
    quiet(SLOW.replace("return 48", "return 12"), "PIP006")
