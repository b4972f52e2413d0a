"""Parameters that ``.to()`` replaces on an XLA device, and the optimizer that was built before it."""

from __future__ import annotations

import pytest

from tests.rules.xla.loops import HEAD, line, run
from tests.scripts import loud

pytestmark = pytest.mark.xla

BEFORE = (
    HEAD[: HEAD.index("net = ")]
    + """
def model():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4))
"""
)
LOOP = """
for step in range(4):
    optimizer.zero_grad()
    net(torch.randn(4, 8, device=device)).square().mean().backward()
    optimizer.step()
    torch_xla.sync()
"""


def test_the_optimizer_came_before_the_move():
    wrong = "net = model()\noptimizer = torch.optim.Adam(net.parameters())\nnet = net.to(device)\n" + LOOP
    report = run(wrong, BEFORE)
    [found] = report.of("OPT001")

    assert "the move or conversion in script.py line" in found.message
    assert found.site.line == line(wrong, "optimizer.step()", BEFORE)
    assert "after the last move" in found.fix


@pytest.mark.parametrize(
    "made",
    [
        "net = model().to(device)\noptimizer = torch.optim.Adam(net.parameters())",
        "optimizer = torch.optim.Adam((net := model()).parameters())\nnet.to(device)\n"
        "optimizer = torch.optim.Adam(net.parameters())",
    ],
    ids=["after the move", "built again after the move"],
)
def test_silent_when_it_comes_after_the_move(made):
    assert loud(run(made + "\n" + LOOP, BEFORE)) == []
