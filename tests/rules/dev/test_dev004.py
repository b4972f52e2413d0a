from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

CONSTANT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.prior = torch.linspace(-1, 1, 5)

    def forward(self, x):
        return self.fc(x) + self.prior

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda")).sum().backward()
"""


def test_constant_in_a_plain_attribute():
    finding = one(CONSTANT, "DEV004")

    assert finding.severity.value == "warning"
    assert finding.site.line == line(CONSTANT, "self.prior = ")
    assert names(finding) == ["net.prior", "net"]
    assert f"used in line {line(CONSTANT, 'return self.fc')}" in finding.message
    assert finding.fix == 'self.register_buffer("prior", ..., persistent=False)'


def test_corrected_is_silent():
    silent(CONSTANT.replace("self.prior = torch.linspace(-1, 1, 5)", 'self.register_buffer("prior", torch.ones(5))'))


@pytest.mark.parametrize(
    ("attribute", "use", "path"),
    [
        ("{'a': torch.ones(5)}", "self.kept['a']", "net.kept['a']"),
        ("[torch.ones(5)]", "self.kept[0]", "net.kept[0]"),
        ("torch.ones(5)", "self.kept[None, :]", "net.kept"),
    ],
)
def test_containers_and_views(attribute, use, path):
    source = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.kept = {attribute}

    def forward(self, x):
        kept = {use}
        return self.fc(x) * kept

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda"))
"""
    assert names(one(source, "DEV004"))[0] == path


@pytest.mark.parametrize(
    "source",
    [
        """
net = nn.Linear(3, 2).to("cuda")
net.metric = torch.zeros(1)
net.metric += net(torch.randn(4, 3, device="cuda")).detach().sum().cpu()
""",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.prior = torch.linspace(-1, 1, 5)
        self.scale = torch.tensor(2.0)
        self.order = torch.tensor([1, 0, 2, 3, 4])

    def forward(self, x):
        return (self.fc(x) + self.prior.to(x.device)).mul(self.scale)[:, self.order]

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda"))
""",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.last = None

    def forward(self, x):
        self.last = self.fc(x)
        return self.last

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda")).sum().backward()
net.cpu()
""",
    ],
    ids=["host only", "moved where used", "activation"],
)
def test_legitimate_patterns_are_silent(source):
    silent(source)


def test_what_hangs_on_the_class():
    source = """
class Net(nn.Module):
    MEAN = torch.tensor([0.5, 0.4]).view(1, 2)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x - self.MEAN)

net = Net().to("cuda")
net(torch.randn(4, 2, device="cuda"))
"""
    finding = one(source, "DEV004")

    assert names(finding) == ["net.MEAN", "net"]
    assert finding.site.line == line(source, "MEAN = ")
    assert "class attribute" in finding.message
    assert finding.fix.startswith('in __init__: self.register_buffer("MEAN"')


def test_parameters_in_a_list():
    source = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.weights = [nn.Parameter(torch.eye(4)) for _ in range(2)]

    def forward(self, x):
        return self.fc(x) @ self.weights[0]

net = Net().to("cuda")
net(torch.randn(4, 4, device="cuda"))
"""
    finding = one(source, "DEV004")

    assert "net.weights[0] is on cpu" in finding.message
    assert "an nn.Parameter in a plain container" in finding.message
    assert finding.fix == "self.weights = nn.ParameterList(...)"


def test_the_edit_for_a_closure_names_the_variable():
    source = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        scale = torch.linspace(0.5, 1.5, 4)
        self.act = lambda x: x.tanh() * scale

    def forward(self, x):
        return self.act(self.fc(x))

net = Net().to("cuda")
net(torch.randn(4, 4, device="cuda"))
"""

    assert one(source, "DEV004").fix == (
        'self.register_buffer("scale", scale, persistent=False), and self.scale in the function'
    )


def test_a_part_is_named_by_its_way_from_the_model():
    source = """
class Position(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.zeros(8, 4)

    def forward(self, x):
        return x + self.table[: x.size(0)]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.head = Position(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.position(x))

model = Model().to("cuda")
model(torch.randn(3, 4, device="cuda"))
"""

    assert names(one(source, "DEV004")) == ["model.position.table", "model.position"]
