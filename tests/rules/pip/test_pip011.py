from __future__ import annotations

from tests.rules.loops import at, found, quiet

COMPARED = """
import torch
torch.seed()
net = torch.nn.Linear(8, 2)
on_host = net(torch.randn(4, 8)).mean()
on_device = net.to("cuda")(torch.randn(4, 8, device="cuda")).mean()
"""


def test_compared_without_seed():
    finding = found(COMPARED, "PIP011")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(COMPARED, "on_device = ")
    assert finding.subjects[0].name == "net"
    assert "net runs on cpu and cuda:0 in one run, and no seed is set" in finding.message
    assert finding.fix.startswith("torch.manual_seed(0)")


def test_with_seed_is_silent():
    quiet(COMPARED.replace("torch.seed()", "torch.manual_seed(3)"), "PIP011")


def test_one_device_is_silent():
    quiet(COMPARED.replace('.to("cuda")', "").replace(', device="cuda"', ""), "PIP011")
