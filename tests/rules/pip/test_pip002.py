from __future__ import annotations

from deviceguard.findings import Severity
from tests.rules.loops import at, found, quiet, training

EVERY_STEP = training('batch = torch.randn(16, 8)\nmoved = batch.to("cuda", non_blocking=True)')
LOADER = """
import torch
data = torch.utils.data.TensorDataset(torch.randn(80, {size}))
net = torch.nn.Linear({size}, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for (rows,) in torch.utils.data.DataLoader(data, batch_size=8{more}):
    optimizer.zero_grad()
    net(rows.to("cuda", non_blocking={no_wait})).mean().backward()
    optimizer.step()
"""


def test_no_wait_from_pageable_memory():
    finding = found(EVERY_STEP, "PIP002")

    assert finding.severity is Severity.WARNING
    assert finding.site.line == at(EVERY_STEP, "non_blocking=True")
    assert finding.subjects[0].name == "batch"
    assert "batch (float32 on cpu), 512 bytes, goes to cuda:0 with non_blocking=True in 8 of 8 steps" in finding.message
    assert "pin_memory=True" in finding.fix


def test_large_batches_of_a_loader():
    finding = found(LOADER.format(size=40_000, more="", no_wait=False), "PIP002")

    assert finding.severity is Severity.WARNING
    assert "loader without pin_memory" in finding.message


def test_small_batches_of_a_loader_are_advice():
    assert found(LOADER.format(size=8, more="", no_wait=False), "PIP002").severity is Severity.ADVICE


def test_pinned_but_blocking_is_advice():
    finding = found(LOADER.format(size=8, more=", pin_memory=True", no_wait=False), "PIP002")

    assert finding.severity is Severity.ADVICE
    assert "non_blocking=True" in finding.fix


def test_pinned_is_silent():
    quiet(LOADER.format(size=8, more=", pin_memory=True", no_wait=True), "PIP002")


def test_replay_buffer_is_silent():
    quiet(
        training('batch = buffer[torch.randint(0, 100, (4,))].to("cuda")', before="buffer = torch.randn(100, 8)"),
        "PIP002",
    )
