from __future__ import annotations

import torch

from tests.rules.loops import at, found, quiet

FULL = """
import torch
net = torch.nn.Linear(1024, 1024).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    loss = net(torch.randn(2, 1024, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_float32_on_a_fast_device():
    finding = found(FULL, "PIP008")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(FULL, "loss = net(")
    assert finding.subjects[0].name == "net"
    assert "1,048,576 float32 weights on cuda:0" in finding.message
    assert "autocast" in finding.fix


def test_autocast_is_silent():
    source = FULL.replace("    loss = net", "    with torch.autocast('cuda', dtype=torch.bfloat16): loss = net")

    quiet(source, "PIP008")


def test_short_tf32_is_silent():
    before = torch.get_float32_matmul_precision()
    try:
        quiet(FULL.replace("import torch\n", "import torch\ntorch.set_float32_matmul_precision('high')\n", 1), "PIP008")
    finally:
        torch.set_float32_matmul_precision(before)


def test_small_models_are_silent():
    quiet(FULL.replace("1024", "64"), "PIP008")


def test_slow_devices_are_silent(monkeypatch):
    from deviceguard.rules.pip import pip008_full_precision

    monkeypatch.setattr(pip008_full_precision, "is_faster_with_short_numbers", lambda device: False)
    quiet(FULL, "PIP008")
