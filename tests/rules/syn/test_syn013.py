from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet

EARLY = """
import torch
x = torch.randn(100, device="cuda")
on_host = x.to("cpu", non_blocking=True)
total = float(on_host.sum())
"""


def test_read_before_the_copy_is_done():
    finding = found(EARLY, "SYN013")

    assert finding.severity.value == "error"
    assert finding.site.line == at(EARLY, "on_host.sum()")
    assert finding.subjects[0].name == "on_host"
    assert "on_host (on the host) is used by sum() while its asynchronous copy" in finding.message
    assert "event.synchronize()" in finding.fix


@pytest.mark.parametrize(
    "read",
    [
        "print(on_host)",
        "total = on_host.numpy().sum()",
        "total = on_host[3].item()",
        "array = on_host.numpy()\ntotal = array.sum()",
        "copy = on_host.clone()",
    ],
)
def test_other_reads(read):
    found(EARLY.replace("total = float(on_host.sum())", read), "SYN013")


def test_into_a_pinned_buffer():
    source = """
    import torch
    buffer = torch.empty(100).pin_memory()
    buffer.copy_(torch.randn(100, device="cuda"), non_blocking=True)
    first = buffer.max()
    """

    assert found(source, "SYN013").subjects[0].name == "buffer"


@pytest.mark.parametrize(
    "wait",
    [
        "torch.cuda.synchronize()",
        "torch.cuda.current_stream().synchronize()",
        "event = torch.cuda.Event(); event.record(); event.synchronize()",
        "event = torch.cuda.Event(); event.record()\nwhile not event.query(): pass",
        "x.sum().item()",
        "shape = on_host.shape; on_host = on_host.view(10, 10); torch.cuda.synchronize()",
        "array = on_host.numpy(); torch.cuda.synchronize()",
    ],
)
def test_waited_for_is_silent(wait):
    quiet(EARLY.replace("total = ", wait + "\ntotal = "), "SYN013")


def test_blocking_copy_is_silent():
    quiet(EARLY.replace(", non_blocking=True", ""), "SYN013")


def test_pageable_destination_is_silent():
    source = """
    import torch
    buffer = torch.empty(100)
    buffer.copy_(torch.randn(100, device="cuda"), non_blocking=True)
    first = buffer.max()
    """
    quiet(source, "SYN013")
