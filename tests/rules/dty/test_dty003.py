from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, run, silent

SCALE = """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))

    def forward(self, x):
        return self.fc(x) * self.scale

head = Head().to("cuda")
head(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
"""


def test_float64_buffer():
    finding = one(SCALE, "DTY003")

    assert finding.severity.value == "warning"
    assert names(finding) == ["head.scale"]
    assert finding.subjects[0].dtype == "float64"
    assert "float32 activations" in finding.message


def test_corrected_is_silent():
    silent(SCALE.replace("dtype=torch.float64", "dtype=torch.float32"))


def test_operation_that_saves_nothing():
    assert names(one(SCALE.replace("* self.scale", "+ self.scale"), "DTY003")) == ["head.scale"]


def test_without_gradients():
    source = SCALE.replace(
        'head(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()',
        """
with torch.no_grad():
    head(torch.randn(8, 4, device="cuda"))
""",
    )

    assert names(one(source, "DTY003")) == ["head.scale"]


def test_constant_outside_of_the_model():
    source = """
net = nn.Linear(4, 3)
weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
loss = (net(torch.randn(8, 4)).pow(2) * weights).mean()
loss.backward()
"""
    finding = one(source, "DTY003")

    assert names(finding) == ["weights"]
    assert finding.site.line == line(source, "loss.backward()")


@pytest.mark.parametrize(
    "source",
    [
        "net = nn.Linear(4, 3)\nnet(torch.randn(8, 4)).double().sum().backward()\n",
        "net = nn.Linear(4, 3).double()\nnet(torch.randn(8, 4).double()).sum().backward()\n",
        "net = nn.Linear(4, 3)\n(net(torch.randn(8, 4)) * torch.tensor(2.0, dtype=torch.float64)).sum().backward()\n",
        "net = nn.Linear(4, 3)\nnet(torch.randn(8, 4)).sum(dtype=torch.float64).backward()\n",
        SCALE.replace("* self.scale", "* self.scale.to(x.dtype)"),
    ],
    ids=["cast written out", "double model", "scalar", "dtype of a sum", "cast where used"],
)
def test_legitimate_patterns_are_silent(source):
    silent(source)


def test_two_buffers_of_numpy():
    source = """
import numpy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.tensor(numpy.zeros(4)))
        self.register_buffer("std", torch.tensor(numpy.ones(4)))

    def forward(self, x):
        return (self.fc(x) - self.mean) / self.std

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda")).sum().backward()
"""
    found = run(source).of("DTY003")

    assert [(f.subjects[0].name, f.site.line) for f in found] == [
        ("net.mean", line(source, '"mean"')),
        ("net.std", line(source, '"std"')),
    ]
