from __future__ import annotations

import time

import pytest

import deviceguard
from tests.rules.loops import at, found, quiet, training

TIMED = """
import time
import torch
a = torch.randn(16, 16, device="cuda")
start = time.perf_counter()
b = a @ a
took = time.perf_counter() - start
"""


def test_clock_around_a_launch():
    finding = found(TIMED, "SYN015")

    assert finding.severity.value == "warning"
    assert finding.site.line == at(TIMED, "took = ")
    assert f"began in line {at(TIMED, 'start = ')}" in finding.message
    assert finding.fix.startswith("torch.cuda.synchronize() before each reading")


def test_end_that_is_named_first():
    source = TIMED.replace("took = time.perf_counter() - start", "end = time.perf_counter()\nprint(end - start)")

    assert found(source, "SYN015").site.line == at(source, "end = time")


def test_each_step():
    source = training("total += time.time() - begin").replace("    x = torch", "    begin = time.time()\n    x = torch")

    assert found(source, "SYN015").count == 10


@pytest.mark.parametrize("wait", ["torch.cuda.synchronize()", "b.sum().item()", "b = b.cpu()"])
def test_with_a_wait_is_silent(wait):
    quiet(TIMED.replace("took = ", f"{wait}\ntook = "), "SYN015")


def test_time_limit_is_silent():
    quiet(
        TIMED.replace("took = time.perf_counter() - start", "if time.perf_counter() - start > 60: raise SystemExit"),
        "SYN015",
    )


def test_time_stamp_is_silent():
    quiet(TIMED.replace("took = time.perf_counter() - start", "stamp = time.time()"), "SYN015")


def test_host_work_is_silent():
    quiet(TIMED.replace("b = a @ a", "b = torch.ones(3).sum()"), "SYN015")


def test_many_steps_are_silent():
    quiet(training("pass", before="begin = time.time()", after="print(time.time() - begin)"), "SYN015")


def test_clocks_are_put_back():
    clock = time.perf_counter
    with deviceguard.simulate("cuda"), deviceguard.watch():
        assert time.perf_counter is not clock
        assert time.perf_counter() <= time.perf_counter()

    assert time.perf_counter is clock
