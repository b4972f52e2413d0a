from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

ROUNDED = """
net = nn.Linear(4, 4, bias=False).to("cuda").bfloat16()
with torch.no_grad():
    net.weight.fill_(1.0)
opt = torch.optim.SGD(net.parameters(), lr=6e-4)
for _ in range(12):
    opt.zero_grad()
    net(torch.ones(1, 4, device="cuda", dtype=torch.bfloat16)).sum().backward()
    opt.step()
"""


def test_updates_that_are_rounded_away():
    finding = one(ROUNDED, "DTY010")

    assert finding.severity.value == "warning"
    assert finding.site.line == line(ROUNDED, "opt.step()")
    assert names(finding) == ["net.weight", "opt"]
    assert "100% of the weights" in finding.message
    assert "0.0006" in finding.message


def test_corrected_is_silent():
    silent(ROUNDED.replace(".bfloat16()", "").replace(", dtype=torch.bfloat16", ""))


@pytest.mark.parametrize(
    "source",
    [
        ROUNDED.replace("lr=6e-4", "lr=0.1"),
        ROUNDED.replace("lr=6e-4", "lr=0.0"),
        ROUNDED.replace("    opt.step()", "    opt.step()\n    warm.step()").replace(
            "for _", "warm = torch.optim.lr_scheduler.LinearLR(opt, 0.01, total_iters=100)\nfor _"
        ),
    ],
    ids=["large enough", "rate of zero", "warm-up"],
)
def test_legitimate_patterns_are_silent(source):
    silent(source)


AVERAGE = """
import copy

net = nn.Linear(4, 4).to("cuda")
average = copy.deepcopy(net).bfloat16().requires_grad_(False)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for _ in range(8):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
    opt.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), net.parameters()):
            a.mul_(0.9999).add_(p.bfloat16(), alpha=0.0001)
"""


def test_average_that_never_moves():
    finding = one(AVERAGE, "DTY010")

    assert names(finding)[0] in ("a", "average.weight")
    assert "bfloat16" in finding.message


def test_average_kept_in_a_dictionary():
    source = """
net = nn.Linear(4, 3).to("cuda")
average = {k: v.detach().clone().bfloat16() for k, v in net.state_dict().items()}
opt = torch.optim.SGD(net.parameters(), lr=1.0)
for _ in range(8):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
    opt.step()
    for k, v in net.state_dict().items():
        average[k].lerp_(v.bfloat16(), 1e-5)
"""
    finding = one(source, "DTY010")

    assert finding.site.line == line(source, "lerp_")
    assert names(finding)[0].startswith("average[")


def test_average_written_without_its_weight_in_sight():
    source = AVERAGE.replace("a.mul_(0.9999).add_(p.bfloat16(), alpha=0.0001)", "a.copy_(0.9999 * a + 0.0001 * p)")

    assert "is written to at every step" in one(source, "DTY010").message


def test_average_in_float32_is_silent():
    silent(AVERAGE.replace(".bfloat16()", ""))
