from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

MOVED_FIRST = """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4)).to("cuda")

    def forward(self, x):
        return self.fc(x) * self.weight

scale = Scale().to("cuda")
opt = torch.optim.SGD(scale.parameters(), lr=0.1)
scale(torch.randn(2, 4, device="cuda")).sum().backward()
opt.step()
"""


def test_parameter_moved_before_it_was_assigned():
    finding = one(MOVED_FIRST, "DEV006")

    assert finding.severity.value == "error"
    assert finding.site.line == line(MOVED_FIRST, "self.weight = ")
    assert names(finding) == ["scale.weight", "scale"]
    assert finding.fix.startswith("self.weight = nn.Parameter(tensor.to(device))")


def test_corrected_is_silent():
    silent(MOVED_FIRST.replace('nn.Parameter(torch.ones(4)).to("cuda")', 'nn.Parameter(torch.ones(4, device="cuda"))'))


@pytest.mark.parametrize(
    "made", ["nn.Parameter(torch.randn(4)).cuda()", "nn.Parameter(torch.randn(4, device='cuda')) * 0.02"]
)
def test_other_operations_on_a_new_parameter(made):
    source = MOVED_FIRST.replace('nn.Parameter(torch.ones(4)).to("cuda")', made)

    assert names(one(source, "DEV006"))[0] == "scale.weight"


@pytest.mark.parametrize(
    "source",
    [
        """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.transposed = self.fc.weight.t()
        self.half = self.fc.weight.to(torch.bfloat16)

    def forward(self, x):
        return x @ self.transposed

net = Tied()
net(torch.randn(2, 4)).sum().backward()
""",
        """
net = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).to("cuda")
net(torch.randn(2, 4, device="cuda")).sum().backward()
""",
        """
class Fast(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.weight

net = Fast()
slow = net.weight
del net.weight
net.weight = slow * 0.9
net(torch.randn(2, 4)).sum().backward()
""",
    ],
    ids=["computed from a registered one", "weight norm", "fast weights"],
)
def test_tensors_computed_from_registered_parameters_are_silent(source):
    silent(source)


def test_model_made_before_the_guard_is_silent():
    import torch
    from torch import nn

    import deviceguard

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))
            self.scaled = self.weight * 2

        def forward(self, x):
            return x * self.scaled

    net = Net()
    with deviceguard.watch(select="DEV006") as report:
        net(torch.ones(2, 4)).sum().backward()

    assert report.findings == []


def test_a_computed_tensor_given_to_an_optimizer():
    source = """
z = torch.randn(1, 4, requires_grad=True).to("cuda")
opt = torch.optim.Adam([z], lr=0.1)
"""
    finding = one(source, "DEV006")

    assert finding.site.line == line(source, "Adam([z]")
    assert names(finding) == ["z"]
    assert f"It comes from line {line(source, 'z = torch')}" in finding.message
    assert "Adam refuses it" in finding.message
