from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

WEIGHT = """
def weighted(prediction, target):
    w = torch.ones(prediction.shape[1])
    w[0] = 0.5
    return ((prediction - target).pow(2) * w).mean()

net = nn.Linear(4, 3).to("cuda")
weighted(net(torch.randn(8, 4, device="cuda")), torch.zeros(8, 3, device="cuda"))
"""


def test_factory_without_a_device():
    finding = one(WEIGHT, "DEV008")

    assert finding.site.line == line(WEIGHT, "return ((")
    assert names(finding) == ["w"]
    assert f"torch.ones in line {line(WEIGHT, 'torch.ones')} is called without a device" in finding.message
    assert finding.fix == "torch.ones(..., device=prediction.device)"


def test_corrected_is_silent():
    silent(WEIGHT.replace("shape[1])", "shape[1], device=prediction.device)"))


@pytest.mark.parametrize(
    ("expression", "factory"),
    [
        ("x + torch.ones(4)", "torch.ones"),
        ("torch.cat([x, torch.zeros(1, 4)])", "torch.zeros"),
        ("x.masked_fill(torch.zeros(3, 4).bool(), 0.0)", "torch.zeros"),
        ("torch.where(x > 0, x, torch.arange(4).float())", "torch.arange"),
    ],
)
def test_factory_within_the_expression(expression, factory):
    source = f"""
x = torch.randn(3, 4, device="cuda")
result = {expression}
"""
    finding = one(source, "DEV008")

    assert finding.site.line == line(source, "result = ")
    assert factory in finding.message


def test_host_scalars_indices_and_moved_factories_are_silent():
    silent("""
x = torch.randn(3, 4, device="cuda")
x * torch.tensor(2.0)
x[torch.arange(2)]
x + torch.ones(4).to(x.device)
torch.zeros(4) + torch.ones(4)
x.copy_(torch.randn(3, 4))
""")


@pytest.mark.parametrize(
    ("made", "factory"),
    [
        ("torch.triu(torch.ones(3, 3), diagonal=1).bool()", "torch.ones"),
        ("torch.ones(3, 3, device=x.device if on_device else None) > 0", "torch.ones"),
        ("(torch.arange(9).float().view(3, 3) * 2 + 1) > 4", "torch.arange"),
    ],
)
def test_factories_inside_an_expression(made, factory):
    source = f"""
on_device = False

def scores(x):
    mask = {made}
    return (x @ x.T).masked_fill(mask, 0.0)

scores(torch.randn(3, 4, device="cuda"))
"""
    finding = one(source, "DEV008")

    assert finding.site.line == line(source, "masked_fill")
    assert names(finding) == ["mask"]
    assert f"{factory} in line {line(source, 'mask = ')} is called without a device" in finding.message


def test_no_variable_holds_it():
    source = """
def pad(x):
    return torch.cat([x, torch.zeros(2, 4)])

pad(torch.randn(3, 4, device="cuda"))
"""
    finding = one(source, "DEV008")

    assert finding.message.startswith("torch.zeros(2, 4) is on cpu")
    assert finding.fix == "torch.zeros(..., device=x.device)"


def test_in_the_backward_of_a_function_of_ones_own():
    source = """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        mask = torch.ones(grad.shape)
        return grad * mask

x = torch.randn(3, device="cuda", requires_grad=True)
Twice.apply(x).sum().backward()
"""
    finding = one(source, "DEV008")

    assert finding.site.line == line(source, "return grad * mask")
    assert names(finding) == ["mask"]
