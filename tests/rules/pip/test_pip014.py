from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet

CANCELLED = """
import torch
from torch import nn
conv = nn.Conv2d(3, 4, 3)
net = nn.Sequential(conv, nn.BatchNorm2d(4)).to("cuda")
net(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
"""


def test_bias_right_before_a_norm():
    finding = found(CANCELLED, "PIP014")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(CANCELLED, "conv = ")
    assert finding.subjects[0].name == "net[0].bias" or finding.subjects[0].name == "conv.bias"
    assert "has a bias that the normalisation right after subtracts again" in finding.message
    assert finding.fix.startswith("bias=False")


@pytest.mark.parametrize(
    "changed",
    [
        CANCELLED.replace("4, 3)", "4, 3, bias=False)"),
        CANCELLED.replace("conv, nn.Batch", "conv, nn.ReLU(), nn.Batch"),
        CANCELLED.replace('.to("cuda")', '.to("cuda").eval()'),
        CANCELLED.replace("nn.BatchNorm2d(4)", "nn.GroupNorm(2, 4)"),
        CANCELLED.replace("4, 3)\n", "4, 3)\nconv.bias.requires_grad_(False)\n"),
    ],
)
def test_other_networks_are_silent(changed):
    quiet(changed, "PIP014")
