"""Refusals out of compiled code, replicas and wrappers for several processes; and what explaining costs: nothing."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests.rules.findings import line, names, one, run, silent

COMPILED = """
torch._dynamo.reset()
net = torch.compile(nn.Linear(4, 2), backend="eager")
batch = torch.randn(3, 4, dtype=torch.float64)
net(batch)
"""
COMPILED_FUNCTION = """
torch._dynamo.reset()

@torch.compile(backend="eager")
def mix(a, b):
    return a @ b

left, right = torch.randn(3, 3), torch.randn(3, 3).double()
mix(left, right)
"""
REPLICA = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.prior = torch.zeros(2)

    def forward(self, x):
        mask = torch.ones(2)
        return self.fc(x) * mask

net = nn.DataParallel(Net().to("cuda"), device_ids=[0, 1])
net(torch.randn(4, 4, device="cuda"))
"""
WRAPPED = """
import tempfile
import torch.distributed as dist

store = tempfile.mktemp()
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
try:
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    batch = torch.randn(3, 4, dtype=torch.float64)
    net(batch)
finally:
    dist.destroy_process_group()
"""
TRAINING = """
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(8, 4, device="cuda"), torch.zeros(8, 1, device="cuda")
for _ in range(14):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
"""


def test_a_compiled_module():
    finding = one(COMPILED, "DTY001", None)

    assert finding.site.line == line(COMPILED, "net(batch)")
    assert names(finding) == ["batch", "net"]
    assert f"line {line(COMPILED, 'batch = ')}" in finding.message


def test_a_compiled_function():
    finding = one(COMPILED_FUNCTION, "DTY001", None)

    assert finding.site.line == line(COMPILED_FUNCTION, "mix(left, right)")
    assert names(finding) == ["right", "left"]


def test_a_replica():
    finding = one(REPLICA, "DEV008", "cuda:2")

    assert finding.site.line == line(REPLICA, "self.fc(x) * mask")
    assert names(finding) == ["mask"]


def test_an_attribute_of_a_replica():
    finding = one(REPLICA.replace("* mask", "+ self.prior"), "DEV004", "cuda:2")

    assert finding.site.line == line(REPLICA, "self.prior = ")
    assert names(finding) == ["net.module.prior", "net.module"]


def test_a_replica_pinned_to_one_index():
    finding = one(REPLICA.replace("torch.ones(2)", 'torch.ones(2, device="cuda:0")'), "DEV010", "cuda:2")

    assert names(finding) == ["mask"]
    assert finding.fix == "torch.ones(..., device=...) with the device of what it meets"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build has no torch.distributed")
def test_a_module_wrapped_for_several_processes():
    finding = one(WRAPPED, "DTY001", None)

    assert finding.site.line == line(WRAPPED, "net(batch)")
    assert names(finding) == ["batch", "net.module"]


@pytest.mark.parametrize("policy", ["warn", "strict"])
def test_nothing_of_it_runs_while_nothing_fails(monkeypatch, policy):
    asked = []
    for module, name in (
        ("deviceguard.sources.post_mortem", "examine"),
        ("deviceguard.sources.post_mortem", "problem_of"),
        ("deviceguard.sources.parallel", "problem_of"),
        ("deviceguard.naming.provenance", "tree_of"),
        ("deviceguard.naming.expressions", "running_node"),
        ("deviceguard.rules.dev.blame", "blame"),
    ):
        watched = importlib.import_module(module)
        monkeypatch.setattr(watched, name, lambda *args, name=name, **kwargs: asked.append(name))

    silent(TRAINING, policy=policy)

    assert asked == []


def test_the_watch_over_what_never_runs_would_see_it(monkeypatch):
    asked = []
    monkeypatch.setattr("deviceguard.sources.post_mortem.problem_of", lambda error: asked.append(error) or "other")

    run(TRAINING.replace("F.mse_loss(net(x), y)", "F.mse_loss(net(x), y.cpu())"))

    assert asked
