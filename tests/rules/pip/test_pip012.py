from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet, training

FILLED = training("pass").replace("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)")


def test_filled_at_every_step():
    finding = found(FILLED, "PIP012")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(FILLED, "zero_grad(")
    assert finding.subjects[0].name == "optimizer"
    assert "optimizer.zero_grad(set_to_none=False) fills every gradient with zeros in" in finding.message
    assert finding.fix == "optimizer.zero_grad(), which drops them"


def test_module():
    assert found(FILLED.replace("optimizer.zero_grad", "net.zero_grad"), "PIP012").subjects[0].name == "net"


@pytest.mark.parametrize("call", ["optimizer.zero_grad()", "optimizer.zero_grad(True)", "net.zero_grad()"])
def test_dropped_is_silent(call):
    quiet(training("pass").replace("optimizer.zero_grad()", call), "PIP012")


def test_once_is_silent():
    quiet(training("pass", before="", after="optimizer.zero_grad(set_to_none=False)"), "PIP012")
