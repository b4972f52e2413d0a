from __future__ import annotations

from tests.rules.loops import at, found, quiet

ODD = """
import torch
net = torch.nn.Linear(100, 1001).to("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    net(torch.randn(8, 100, device="cuda"))
"""


def test_odd_sizes_under_autocast():
    finding = found(ODD, "PIP013")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(ODD, "net(torch.randn")
    assert finding.subjects[0].name == "net"
    assert "with 100 and 1001 no multiple of 8" in finding.message
    assert finding.fix.startswith("pad it to 104 and 1008")


def test_short_parameters():
    source = ODD.replace('.to("cuda")', '.to("cuda", torch.bfloat16)').replace(
        "100, device", "100, dtype=torch.bfloat16, device"
    )

    found(source.replace('with torch.autocast("cuda", dtype=torch.bfloat16):', "if True:"), "PIP013")


def test_multiples_are_silent():
    quiet(ODD.replace("1001", "1008").replace("100,", "104,"), "PIP013")


def test_few_classes_are_silent():
    quiet(ODD.replace("100, 1001", "104, 10").replace("8, 100", "8, 104"), "PIP013")


def test_float32_is_silent():
    quiet(ODD.replace('with torch.autocast("cuda", dtype=torch.bfloat16):', "if True:"), "PIP013")
