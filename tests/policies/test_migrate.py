"""``migrate``: a repaired run is the corrected run, says what it did, and leaves correct code alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import deviceguard
from tests.scripts import codes, run_script

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
device = "cuda"
torch.manual_seed(0)
"""

TAIL = """
print([float(value) for value in result.detach().cpu().flatten()])
"""

TRAIN = """
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for x, y in [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]:
    optimizer.zero_grad()
    loss = F.mse_loss(net(x{x}), y{y})
    loss.backward()
    optimizer.step()
result = torch.cat([p.flatten() for p in net.parameters()])
"""

NET = "net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)\n"

PAIRS = {
    "input": (NET + TRAIN.format(x="", y=".to(device)"), NET + TRAIN.format(x=".to(device)", y=".to(device)")),
    "target": (NET + TRAIN.format(x=".to(device)", y=""), NET + TRAIN.format(x=".to(device)", y=".to(device)")),
    "both": (NET + TRAIN.format(x="", y=""), NET + TRAIN.format(x=".to(device)", y=".to(device)")),
    "device and dtype": (
        NET + TRAIN.format(x=".double()", y=".to(device)"),
        NET + TRAIN.format(x=".to(device)", y=".to(device)"),
    ),
    "loss weight": (
        """
net = nn.Linear(4, 3).to(device)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.3, 0.5]))
x, y = torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)
criterion(net(x), y).backward()
result = net.weight.grad
""",
        """
net = nn.Linear(4, 3).to(device)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.3, 0.5])).to(device)
x, y = torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)
criterion(net(x), y).backward()
result = net.weight.grad
""",
    ),
    "hidden state": (
        """
rnn = nn.LSTM(4, 6).to(device)
out, _ = rnn(torch.randn(5, 2, 4, device=device), (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)))
result = out
""",
        """
rnn = nn.LSTM(4, 6).to(device)
zero = torch.zeros(1, 2, 6, device=device)
out, _ = rnn(torch.randn(5, 2, 4, device=device), (zero, zero))
result = out
""",
    ),
    "table": (
        """
def lookup(table, index):
    return table[index] + 1

result = lookup(torch.linspace(0, 1, 10), torch.arange(3, device=device))
""",
        """
def lookup(table, index):
    return table[index] + 1

result = lookup(torch.linspace(0, 1, 10).to(device), torch.arange(3, device=device))
""",
    ),
    "list of layers": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x

net = Net().to(device)
result = net(torch.ones(2, 4, device=device))
""",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x

net = Net().to(device)
result = net(torch.ones(2, 4, device=device))
""",
    ),
    "stale parameters": (
        """
net = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device=device)).pow(2).sum().mul(1e-3).backward()
    optimizer.step()
    schedule.step()
result = net.weight
""",
        """
net = nn.Linear(4, 1).to(device)
net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device=device)).pow(2).sum().mul(1e-3).backward()
    optimizer.step()
    schedule.step()
result = net.weight
""",
    ),
    "optimizer state": (
        """
net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
net(torch.ones(8, 4)).sum().backward()
optimizer.step()
net.to(device)
net(torch.ones(8, 4, device=device)).sum().backward()
optimizer.step()
result = net.weight
""",
        """
net = nn.Linear(4, 1).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
net(torch.ones(8, 4, device=device)).sum().backward()
optimizer.step()
net(torch.ones(8, 4, device=device)).sum().backward()
optimizer.step()
result = net.weight
""",
    ),
    "cache": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.cache = {}

    def forward(self, x):
        if "mask" not in self.cache:
            self.cache["mask"] = torch.ones(4, device=x.device) * 2
        return self.fc(x) * self.cache["mask"]

net = Net()
net(torch.ones(2, 4))
net.to(device)
result = net(torch.ones(2, 4, device=device))
""",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * (torch.ones(4, device=x.device) * 2)

net = Net()
net(torch.ones(2, 4))
net.to(device)
result = net(torch.ones(2, 4, device=device))
""",
    ),
    "generator": (
        "result = torch.randn(4, device=device, generator=torch.Generator().manual_seed(3))\n",
        "result = torch.randn(4, device=device, generator=torch.Generator(device).manual_seed(3))\n",
    ),
}

HELD = """
import collections, dataclasses
Pair = collections.namedtuple("Pair", "scale shift")

@dataclasses.dataclass
class Prior:
    shift: torch.Tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.held = {held}

    def forward(self, x):
        return self.fc(x) + self.held{way}

net = Net().to(device)
result = net(torch.ones(2, 4, device=device)) + net(torch.ones(2, 4, device=device))
"""

for _kind, _held, _way in (
    ("tuple", "(2.0, torch.ones(4{on}))", "[1]"),
    ("named tuple in a list", "[Pair(2.0, torch.ones(4{on}))]", "[0].shift"),
    ("dataclass", "Prior(torch.ones(4{on}))", ".shift"),
    ("tuple in a dataclass", "Prior((torch.ones(4{on}),))", ".shift[0]"),
):
    PAIRS[f"tensor held in a {_kind}"] = (
        HELD.format(held=_held.format(on=""), way=_way),
        HELD.format(held=_held.format(on=", device=device"), way=_way),
    )


def output_of(source: str, policy: str, capsys: pytest.CaptureFixture[str]):
    report = run_script(HEAD + source + TAIL, policy=policy)
    return capsys.readouterr().out.splitlines()[-1], report


@pytest.mark.parametrize("name", PAIRS)
def test_a_repaired_run_is_the_corrected_run(name, capsys):
    buggy, corrected = PAIRS[name]
    expected, _ = output_of(corrected, "off", capsys)

    found, report = output_of(buggy, "migrate", capsys)

    if name == "device and dtype":
        assert report.repairs  # the corrected input is another: made as float32
    else:
        assert expected == found
    assert report.repairs
    assert report.internal_errors == 0


@pytest.mark.parametrize("name", PAIRS)
def test_nothing_is_repaired_in_the_corrected_run(name, capsys):
    expected, _ = output_of(PAIRS[name][1], "off", capsys)

    found, report = output_of(PAIRS[name][1], "migrate", capsys)

    assert expected == found
    assert report.repairs == []


class TestFrugality:
    def test_a_constant_is_moved_once(self):
        report = run_script(
            HEAD
            + """
def run():
    net, mask = nn.Linear(4, 4).to(device), torch.ones(4)
    for _ in range(20):
        (net(torch.ones(2, 4, device=device)) * mask).sum().backward()

run()
""",
            policy="migrate",
        )

        (repair,) = report.repairs
        assert (repair.count, repair.copies, repair.nbytes) == (20, 1, 16)
        assert repair.price == "moved 16 B once"

    def test_a_constant_that_changes_is_moved_anew(self, capsys):
        run_script(
            HEAD
            + """
def run():
    mask, total = torch.ones(4), 0.0
    for _ in range(3):
        total += float((torch.ones(4, device=device) * mask).sum())
        mask.mul_(2)
    print(total)

run()
""",
            policy="migrate",
        )

        assert capsys.readouterr().out.strip() == "28.0"

    def test_memory_of_numpy_is_never_kept(self, capsys):
        run_script(
            HEAD
            + """
import numpy

def run():
    array = numpy.ones(4, dtype=numpy.float32)
    mask, total = torch.from_numpy(array), 0.0
    for _ in range(3):
        total += float((torch.ones(4, device=device) * mask).sum())
        array *= 2
    print(total)

run()
""",
            policy="migrate",
        )

        assert capsys.readouterr().out.strip() == "28.0"

    def test_an_upload_at_each_step_is_told_with_its_price(self):
        with deviceguard.simulate("cuda"), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with deviceguard.migrate() as report:
                net = nn.Linear(4, 4).to("cuda")
                for _ in range(12):
                    net(torch.ones(2, 4))

        assert [repair.copies for repair in report.repairs] == [12]
        assert any("moved 32 B 10 times" in str(warning.message) for warning in said)
        assert dict(report.of("DEV001")[0].cost) == {"repairs": 12, "repair_bytes": 384}
        assert report.of("DEV001")[0].count == 12


class TestUndo:
    def test_a_module_goes_back(self):
        with deviceguard.simulate("cuda"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            guard = deviceguard.migrate()
            criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
            with guard:
                criterion(torch.randn(4, 3, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda"))
            moved = criterion.weight.device.type

            assert (moved, guard.undo(), criterion.weight.device.type) == ("cuda", 1, "cpu")
            assert guard.undo() == 0

    def test_an_optimizer_gets_its_parameters_back(self):
        with deviceguard.simulate("cuda"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with deviceguard.migrate() as report:
                net = nn.Linear(4, 1).to("cuda")
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                held, group = list(net.parameters()), optimizer.param_groups[0]
                net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)
                net(torch.ones(2, 4, device="cuda")).sum().backward()
                optimizer.step()

            assert optimizer.param_groups[0] is group
            assert all(one is other for one, other in zip(group["params"], net.parameters(), strict=True))
            report.undo()
            assert all(one is other for one, other in zip(group["params"], held, strict=True))

    @pytest.mark.parametrize("clipped", [False, True])
    def test_an_optimizer_under_a_gradient_scaler(self, clipped):
        clip = "scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(net.parameters(), 1.0)" if clipped else ""
        report = run_script(
            HEAD
            + f"""
net = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net.load_state_dict({{k: v.clone() for k, v in net.state_dict().items()}}, assign=True)
scaler = torch.amp.GradScaler(device)
start = net.weight.detach().clone()
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = net(torch.ones(2, 4, device=device)).square().mean()
    scaler.scale(loss).backward()
    {clip}
    scaler.step(optimizer)
    scaler.update()
assert not torch.equal(net.weight, start)
""",
            policy="migrate",
        )

        assert codes(report) == ["OPT001"]
        assert [repair.rule for repair in report.repairs] == ["OPT001"]
        assert report.findings[0].count == 1


class TestWhatIsLeftAlone:
    def test_a_model_with_a_device_map(self):
        report = run_script(
            HEAD
            + """
class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Linear(4, 4), nn.Linear(4, 4).to(device)
        self.hf_device_map = {"front": "cpu", "back": "cuda:0"}

    def forward(self, x):
        return self.back(self.front(x))

Split()(torch.randn(2, 4))
""",
            policy="migrate",
            raises=RuntimeError,
        )

        assert report.repairs == []

    def test_operands_on_two_accelerators(self):
        report = run_script(
            HEAD + 'torch.ones(3, device="cuda:0") + torch.ones(3, device="cuda:1")\n',
            simulate="cuda:2",
            policy="migrate",
            raises=RuntimeError,
        )

        assert report.repairs == []

    def test_a_refusal_the_program_expects(self):
        report = run_script(
            HEAD
            + """
x = torch.ones(3)
try:
    y = x + torch.ones(3, device=device)
except RuntimeError:
    y = None
assert y is None and x.device.type == "cpu"
""",
            policy="migrate",
        )

        assert report.repairs == []

    def test_an_optimizer_over_another_live_model(self):
        report = run_script(
            HEAD
            + """
import copy
net = nn.Linear(4, 1).to(device)
other = copy.deepcopy(net)
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device=device)).sum().backward()
    optimizer.step()
other(torch.ones(8, 4, device=device))
""",
            policy="migrate",
        )

        assert "OPT001" in codes(report)
        assert report.repairs == []

    def test_an_allowed_rule(self):
        report = run_script(
            HEAD
            + """
import deviceguard
net = nn.Linear(4, 1).to(device)
with deviceguard.allow("DEV"):
    net(torch.ones(2, 4))
""",
            policy="migrate",
            raises=RuntimeError,
        )

        assert report.repairs == []

    def test_the_dtype_of_integers(self):
        report = run_script(
            HEAD + "nn.Linear(4, 1).to(device)(torch.ones(2, 4, dtype=torch.long, device=device))\n",
            policy="migrate",
            raises=RuntimeError,
        )

        assert report.repairs == []

    def test_what_a_call_writes_into(self, capsys):
        run_script(
            HEAD
            + """
total = torch.zeros(3)
total += torch.ones(3, device=device)
print(total.device, total.tolist())
""",
            policy="migrate",
        )

        assert capsys.readouterr().out.strip() == "cpu [1.0, 1.0, 1.0]"

    def test_an_attribute_the_user_forbids_to_change(self, caplog):
        report = run_script(
            HEAD
            + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.prior = torch.ones(4)
        self.sealed = True

    def __setattr__(self, name, value):
        if getattr(self, "sealed", False):
            raise AttributeError("this model is sealed")
        super().__setattr__(name, value)

    def forward(self, x):
        return self.fc(x) + self.prior

Net().to(device)(torch.ones(2, 4, device=device))
""",
            policy="migrate",
            raises=RuntimeError,
        )

        assert codes(report) == ["DEV004"]
        assert report.repairs == []
        assert "this model is sealed" in caplog.text


class TestVariables:
    def test_a_variable_of_the_script_holds_what_was_moved(self, capsys):
        report = run_script(
            HEAD
            + """
table = torch.linspace(0, 1, 10)
index = torch.arange(3, device=device)
for _ in range(3):
    table[index]
print(table.device)
""",
            policy="migrate",
        )

        assert capsys.readouterr().out.strip() == "cuda:0"
        assert report.repairs[0].copies == 1

    def test_not_one_that_has_a_second_name_or_is_written_into(self, capsys):
        run_script(
            HEAD
            + """
buffer = torch.zeros(3)
x = buffer
for step in range(3):
    buffer.fill_(step)
    print(float((x + torch.zeros(3, device=device)).sum()), x.device)
""",
            policy="migrate",
        )

        assert capsys.readouterr().out.split() == ["0.0", "cpu", "3.0", "cpu", "6.0", "cpu"]


def test_the_error_goes_its_way_and_is_explained_once_where_nothing_is_certain():
    report = run_script(
        HEAD + "a = torch.ones(2, 2, device=device)\nb = torch.ones(2, 2, dtype=torch.double, device=device)\na @ b\n",
        policy="migrate",
        raises=RuntimeError,
    )

    assert report.repairs == []
    assert [finding.count for finding in report.of("DTY001")] == [1]
