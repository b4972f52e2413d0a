from __future__ import annotations

from tests.rules.loops import at, cost, found, quiet

UNROLLED = """
import torch

class Unrolled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(8, 8)
    def forward(self, x):
        hidden = x[0]
        for step in range(len(x)):
            hidden = self.cell(x[step], hidden)
        return hidden

net = Unrolled().to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    loss = net(torch.randn({length}, {batch}, 8, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_many_small_layers():
    source = UNROLLED.format(length=120, batch=4)
    finding = found(source, "PIP007")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(source, "loss = net(")
    assert "a step runs 120 layers" in finding.message
    assert "nn.GRU" in finding.fix
    assert cost(finding)["calls"] == 120


def test_few_layers_are_silent():
    quiet(UNROLLED.format(length=20, batch=4), "PIP007")


def test_large_layers_are_silent():
    quiet(UNROLLED.format(length=110, batch=4096), "PIP007")


def test_on_the_host_is_silent():
    quiet(UNROLLED.format(length=120, batch=4).replace('"cuda"', '"cpu"'), "PIP007", simulate=None)
