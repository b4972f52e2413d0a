from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet

EARLY = """
import torch
staging = torch.empty(100).pin_memory()
on_device = torch.empty(100, device="cuda")
copied = torch.cuda.Event()
for step in range(3):
    staging.copy_(torch.randn(100))
    on_device.copy_(staging, non_blocking=True)
    copied.record()
"""


def test_overwritten_while_in_flight():
    finding = found(EARLY, "SYN014")

    assert finding.severity.value == "error"
    assert finding.site.line == at(EARLY, "staging.copy_(")
    assert finding.subjects[0].name == "staging"
    assert "staging (pinned, on the host) is overwritten by copy_()" in finding.message
    assert "event.synchronize()" in finding.fix


@pytest.mark.parametrize(
    "write", ["staging.fill_(step)", "staging[:] = step", "staging += 1", "torch.add(staging, 1, out=staging)"]
)
def test_other_writes(write):
    found(EARLY.replace("staging.copy_(torch.randn(100))", write), "SYN014")


@pytest.mark.parametrize("wait", ["copied.synchronize()", "torch.cuda.synchronize()", "while not copied.query(): pass"])
def test_waited_for_is_silent(wait):
    quiet(EARLY.replace("    staging.copy_", f"    {wait}\n    staging.copy_"), "SYN014")


def test_fresh_buffer_each_time_is_silent():
    source = """
    import torch
    for step in range(3):
        batch = torch.randn(100).pin_memory().to("cuda", non_blocking=True)
    """
    quiet(source, "SYN014")


def test_reading_the_source_is_silent():
    quiet(EARLY.replace("staging.copy_(torch.randn(100))", "total = staging.sum()"), "SYN014")


def test_pageable_source_is_silent():
    quiet(EARLY.replace(".pin_memory()", ""), "SYN014")
