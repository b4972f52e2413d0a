from __future__ import annotations

import pytest

from deviceguard.findings import Severity
from tests.rules.loops import at, found, quiet, training

EVERY_STEP = training("torch.cuda.synchronize()")


def test_wait_at_every_step():
    finding = found(EVERY_STEP, "SYN010")

    assert finding.severity is Severity.WARNING
    assert finding.site.line == at(EVERY_STEP, "synchronize()")
    assert "torch.cuda.synchronize() is called in 8 of 8 steps" in finding.message
    assert "take it out of the step" in finding.fix


@pytest.mark.parametrize("form", ["torch.accelerator.synchronize()", "torch.cuda.current_stream().synchronize()"])
def test_other_forms(form):
    found(training(form), "SYN010")


def test_after_the_loop_is_silent():
    quiet(training("pass", after="torch.cuda.synchronize()"), "SYN010")


def test_on_logging_steps_is_silent():
    quiet(training("if step % 5 == 0: torch.cuda.synchronize()"), "SYN010")


def test_streams_that_wait_for_each_other_are_silent():
    quiet(training("torch.cuda.current_stream().wait_stream(side)", before="side = torch.cuda.Stream()"), "SYN010")


def test_wait_that_a_copy_needs_is_advice():
    body = """
    later = output.detach().to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    total += float(later.sum())
    """

    assert found(training(body), "SYN010").severity is Severity.ADVICE
