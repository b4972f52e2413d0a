from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

LIST = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(3)]
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda"))
"""


def test_layers_in_a_list():
    finding = one(LIST, "DEV003")

    assert finding.site.line == line(LIST, "self.layers = [")
    assert names(finding) == ["net.layers[0]", "net"]
    assert "plain list" in finding.message
    assert finding.fix == "self.layers = nn.ModuleList(...)"


def test_corrected_is_silent():
    silent(LIST.replace("[nn.Linear(4, 4) for _ in range(3)]", "nn.ModuleList(nn.Linear(4, 4) for _ in range(3))"))


METRIC = """
class Hits(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("hits", torch.zeros(3))

    def update(self, prediction, y):
        self.hits.index_add_(0, y, (prediction == y).float())

class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.metrics = {"acc": Hits()}

task = Task().to("cuda")
x, y = torch.randn(8, 4, device="cuda"), torch.randint(0, 3, (8,), device="cuda")
task.metrics["acc"].update(task.fc(x).argmax(1), y)
"""


def test_buffer_of_a_module_in_a_dictionary():
    finding = one(METRIC, "DEV003")

    assert finding.site.line == line(METRIC, 'self.metrics = {"acc"')
    assert names(finding)[0] == "task.metrics['acc']"
    assert "task.metrics['acc'].hits is on cpu" in finding.message
    assert finding.fix == "self.metrics = nn.ModuleDict(...)"


@pytest.mark.parametrize(
    ("holder", "use", "path"),
    [
        ("{'a': [nn.Linear(4, 4)]}", "self.parts['a'][0](x)", "net.parts['a'][0]"),
        ("(nn.Linear(4, 4), 1)", "self.parts[0](x)", "net.parts[0]"),
        ("Box(nn.Linear(4, 4))", "self.parts.inner(x)", "net.parts.inner"),
    ],
)
def test_nested_containers_and_data_classes(holder, use, path):
    source = f"""
import dataclasses

@dataclasses.dataclass
class Box:
    inner: object

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = {holder}
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head({use})

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda"))
"""
    assert names(one(source, "DEV003"))[0] == path


MOVED_BY_HAND = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4).to("cuda") for _ in range(2)]
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)

net = Net().to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).pow(2).sum().backward()
    opt.step()
"""


def test_moved_by_hand_and_never_trained():
    finding = one(MOVED_BY_HAND, "DEV003")

    assert finding.site.line == line(MOVED_BY_HAND, "self.layers = [")
    assert "no optimizer owns its parameters" in finding.message


def test_hidden_layers_given_to_the_optimizer_are_silent():
    silent(
        MOVED_BY_HAND.replace(
            "SGD(net.parameters()", "SGD([*net.parameters(), *(p for l in net.layers for p in l.parameters())]"
        )
    )


def test_frozen_teacher_hidden_in_a_list_is_silent():
    silent("""
class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.teacher = [nn.Linear(4, 2).to("cuda").requires_grad_(False).eval()]

    def forward(self, x):
        return F.mse_loss(self.fc(x), self.teacher[0](x))

net = Student().to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).backward()
    opt.step()
""")


def test_modules_listed_a_second_time_are_silent():
    silent("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.order = [self.b, self.a]

    def forward(self, x):
        for part in self.order:
            x = part(x)
        return x

net = Net().to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).sum().backward()
    opt.step()
""")


def test_a_way_back_to_the_parent_is_no_container():
    from tests.rules.findings import run

    report = run("""
class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = [parent]
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)

class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child(self)

    def forward(self, x):
        return self.child(x)

net = Parent().to("cuda")
x = torch.randn(2, 4)
net(x)
""")

    assert [finding.rule for finding in report.of("DEV")] == ["DEV001"]
