from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

NUMPY = """
import numpy

net = nn.Linear(4, 1).to("cuda")
batch = numpy.random.default_rng(0).normal(size=(8, 4))
x = torch.from_numpy(batch).to("cuda")
net(x)
"""


def test_float64_from_numpy():
    finding = one(NUMPY, "DTY001")

    assert finding.site.line == line(NUMPY, "net(x)")
    assert names(finding) == ["x", "net"]
    assert finding.subjects[0].dtype == "float64"
    assert "float32 parameters" in finding.message
    assert "NumPy arrays are float64" in finding.message
    assert finding.fix.startswith("x = x.to(torch.float32)")


def test_corrected_is_silent():
    silent(NUMPY.replace("from_numpy(batch)", "from_numpy(batch).float()"))


HALF = """
net = nn.Conv2d(1, 2, 3).to("cuda").half()
x = torch.randn(1, 1, 8, 8, device="cuda")
net(x)
"""


def test_half_model_with_a_float_batch():
    finding = one(HALF, "DTY001")

    assert finding.subjects[0].dtype == "float32"
    assert finding.subjects[1].dtype == "float16"
    assert "torch.float16" in finding.fix


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("x @ w", "x"),
        ("F.linear(x, w.t())", "x"),
        ("torch.bmm(x[None], w[None])", "x"),
        ("nn.GRU(4, 3)(x)", "x"),
    ],
)
def test_operators_and_functions(call, name):
    source = f"""
w = torch.randn(4, 3)
x = torch.randn(8, 4, dtype=torch.float64)
y = {call}
"""
    assert names(one(source, "DTY001"))[0].startswith(name)


def test_is_told_where_the_model_is_called():
    source = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)

net = Net()
samples = torch.randn(3, 4).double()
net(samples)
"""
    finding = one(source, "DTY001")

    assert finding.site.line == line(source, "net(samples)")
    assert names(finding)[0] == "samples"


def test_float_indices_of_an_embedding():
    finding = one("table = nn.Embedding(9, 4)\nwords = torch.ones(3)\ntable(words)\n", "DTY001")

    assert names(finding)[0] == "words"
    assert "integer indices" in finding.message


@pytest.mark.parametrize(
    "source",
    [
        """
net = nn.Linear(4, 2).to("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    net(net(torch.randn(3, 4, device="cuda")).repeat(1, 2))
""",
        """
teacher = nn.Linear(4, 3).bfloat16().requires_grad_(False).eval()
student = nn.Linear(4, 3).to("cuda")
x = torch.randn(2, 4)
F.mse_loss(student(x.to("cuda")), teacher(x.bfloat16()).float().to("cuda")).backward()
""",
        "nn.Embedding(9, 4)(torch.arange(9))\nnn.LayerNorm(4)(torch.randn(2, 4))\n",
    ],
    ids=["autocast", "teacher", "integer indices"],
)
def test_legitimate_patterns_are_silent(source):
    silent(source)
