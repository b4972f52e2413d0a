from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, run, silent

FORGOTTEN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = x.flatten(1)
        x = torch.relu(self.first(x))
        return self.last(x)

net = Net().to("cuda")
images = torch.randn(3, 4)
images.to("cuda")
outputs = net(images)
"""


def test_is_told_where_the_model_is_called():
    finding = one(FORGOTTEN, "DEV001")

    assert finding.site.line == line(FORGOTTEN, "outputs = net(images)")
    assert names(finding) == ["images", "net.first"]
    assert "images is on cpu" in finding.message
    assert "on cuda:0" in finding.message
    assert f'Line {line(FORGOTTEN, "images.to(")} calls `images.to("cuda")` and discards the result' in finding.message
    assert finding.fix == "images = images.to('cuda:0') before the call"


def test_corrected_is_silent():
    silent(FORGOTTEN.replace('images.to("cuda")', 'images = images.to("cuda")'))


HIDDEN_STATE = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)

    def first_state(self, x):
        zeros = torch.zeros(1, x.size(0), 6)
        return torch.zeros(1, x.size(0), 6), zeros

    def forward(self, x):
        out, _ = self.rnn(x, self.first_state(x))
        return out

tagger = Tagger().to("cuda")
tagger(torch.randn(2, 5, 4, device="cuda"))
"""


def test_follows_the_result_of_a_function_to_its_factory():
    finding = one(HIDDEN_STATE, "DEV001")

    assert finding.site.line == line(HIDDEN_STATE, "self.rnn(x")
    assert finding.subjects[0].name == "self.first_state(x)[0]"
    assert f"torch.zeros in line {line(HIDDEN_STATE, 'return torch.zeros')} makes it on the host" in finding.message


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("net(x=batch['image'])", "batch['image']"),
        ("net(*[batch['image']])", "batch['image']"),
        ("net(batch['image'].float())", "batch['image']"),
    ],
)
def test_names_the_argument_however_it_is_given(call, name):
    source = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)

net = Net().to("cuda")
batch = {{"image": torch.randn(3, 4)}}
{call}
"""
    finding = one(source, "DEV001")

    assert finding.site.line == line(source, call)
    assert finding.subjects[0].name.startswith(name)


UNMOVED = """
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
x = torch.randn(3, 4, device="cuda")
net(x)
"""


def test_module_that_was_never_moved():
    finding = one(UNMOVED, "DEV001")

    assert finding.site.line == line(UNMOVED, "net(x)")
    assert finding.message.startswith("net (Sequential) has its parameters on cpu, but it is called with x")
    assert finding.fix == "move the module once, before it is used: net.to('cuda:0')"


PLAIN_OPERATOR = """
weight = nn.Parameter(torch.randn(4, 2, device="cuda"))
batches = [torch.randn(3, 4)]
for x in batches:
    out = x @ weight
"""


def test_plain_operator():
    finding = one(PLAIN_OPERATOR, "DEV001")

    assert finding.site.line == line(PLAIN_OPERATOR, "x @ weight")
    assert finding.subjects[0].name == "x"


def test_error_raised_from_it_is_explained_too():
    source = """
net = nn.Linear(4, 2).to("cuda")
images = torch.randn(3, 4)
try:
    net(images)
except RuntimeError as problem:
    raise ValueError("training failed") from problem
"""
    finding = one(source, "DEV001")

    assert finding.subjects[0].name == "images"
    assert finding.site.line == line(source, "net(images)")


def test_lengths_of_a_packed_sequence_belong_on_the_host():
    source = """
x = torch.randn(2, 5, 4, device="cuda")
lengths = torch.tensor([5, 3], device="cuda")
packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
"""
    finding = one(source, "DEV001")

    assert finding.subjects[0].name == "lengths"
    assert finding.fix == "lengths.cpu()"


@pytest.mark.parametrize(
    "source",
    [
        """
class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Linear(4, 8), nn.Linear(8, 1).to("cuda")

    def forward(self, x):
        return self.back(torch.relu(self.front(x)).to("cuda"))

Split()(torch.randn(8, 4)).sum().backward()
""",
        """
class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.to(self.fc.weight.device))

Moves().to("cuda")(torch.randn(3, 4))
""",
        """
net = nn.Linear(4, 2).to("cuda")
net.register_forward_pre_hook(lambda module, args: (args[0].to("cuda"),))
net(torch.randn(3, 4))
""",
        """
a = torch.randn(4, 3, device="cuda")
a * torch.tensor(2.0); a[torch.tensor([0, 2])]; a[torch.tensor([True, False, True, False])]
""",
        """
net = nn.Linear(4, 2).to(torch.device("cuda"))
net(torch.randn(3, 4, device="cuda:0"))
""",
    ],
    ids=["split", "moves itself", "hook", "scalars and indices", "index left out"],
)
def test_legitimate_patterns_are_silent(source):
    silent(source)


def test_other_exceptions_are_left_alone():
    report = run("raise ValueError('different devices are cheap')\n")

    assert report.of("DEV") == []


def test_a_batch_whose_moved_copy_is_thrown_away():
    source = """
import dataclasses

@dataclasses.dataclass
class Batch:
    x: torch.Tensor

    def to(self, device):
        return Batch(self.x.to(device))

net = nn.Linear(4, 1).to("cuda")
batch = Batch(torch.randn(8, 4))
batch.to("cuda")
net(batch.x)
"""
    finding = one(source, "DEV001")

    assert names(finding)[0] == "batch.x"
    assert f'Line {line(source, "batch.to(")} calls `batch.to("cuda")` and discards the result.' in finding.message


def test_moved_to_the_wrong_device_in_forward():
    source = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.device, self.fc = torch.device("cpu"), nn.Linear(4, 1)

    def forward(self, x):
        x = x.to(self.device)
        return self.fc(x)

net = Net().to("cuda")
net(torch.randn(2, 4, device="cuda"))
"""
    finding = one(source, "DEV001")

    assert finding.site.line == line(source, "return self.fc(x)")
    assert names(finding) == ["x", "self.fc"]
    assert f"It comes from line {line(source, 'x = x.to')}" in finding.message


def test_an_argument_is_followed_to_the_call_that_gave_it():
    source = """
def blend(a, b):
    return a * 0.5 + b

noise = torch.as_tensor([1.0, 2.0])
other = noise
blend(torch.randn(2, device="cuda"), other)
"""
    finding = one(source, "DEV008")

    assert names(finding) == ["b"]
    assert f"torch.as_tensor in line {line(source, 'noise = ')}" in finding.message


def test_a_buffer_left_without_data():
    source = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("freq", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return self.fc(x) * self.freq

state = {key: value.to("cuda") for key, value in Net().state_dict().items()}
with torch.device("meta"):
    net = Net()
net.load_state_dict(state, assign=True)
net(torch.randn(2, 4, device="cuda"))
"""
    finding = one(source, "DEV001")

    assert names(finding) == ["self.freq"]
    assert "made without data" in finding.message
    assert "persistent=False" in finding.fix


def test_an_input_that_a_line_of_the_forward_refused():
    source = """
import numpy

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))

    def forward(self, x, edges):
        return edges @ (x @ self.weight)

edges = torch.from_numpy(numpy.eye(5, dtype=numpy.float32))
net = Graph().to("cuda")
net(torch.randn(5, 4, device="cuda"), edges)
"""
    finding = one(source, "DEV001")

    assert names(finding) == ["edges"]
    assert finding.site.line == line(source, "net(torch.randn")
    assert finding.fix == "edges = edges.to('cuda:0') before the call"


def test_a_branch_that_was_not_taken_is_no_origin():
    source = """
fixed = False
average = {"w": torch.zeros(2)}
if fixed:
    average = {"w": average["w"].to("cuda")}
average["w"].add_(torch.ones(2, device="cuda"))
"""
    report = run(source)

    assert f"line {line(source, 'average = ')}" in report.findings[0].message
