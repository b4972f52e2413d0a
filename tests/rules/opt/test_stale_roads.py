"""The roads on which an optimizer comes to hold parameters that nobody runs; each with its corrected form."""

from __future__ import annotations

import pytest

from tests.rules.opt.expectations import HEAD
from tests.scripts import loud, run_script

BEGIN = """
import copy, io, pickle
def mlp(outputs=3):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))
def train(net, optimizer, steps=3, dtype=torch.float32):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 8, dtype=dtype)).square().mean().backward()
        optimizer.step()
"""

ADAM = "optimizer = torch.optim.Adam(net.parameters(), 1e-2)"

ROADS = {
    "a conversion that replaces": (
        "torch.__future__.set_overwrite_module_params_on_conversion(True)\nnet = mlp()",
        "net.double()",
        "train(net, optimizer, dtype=torch.float64)",
        "the move or conversion in script.py line",
    ),
    "a copy that is trained on": (
        "net = mlp()\nstart = copy.deepcopy(net)",
        "net = copy.deepcopy(start)",
        "train(net, optimizer)",
        "it holds a copy of a parameter",
    ),
    "a checkpoint of the whole model": (
        "net = mlp()\nfile = pickle.dumps(net)",
        "net = pickle.loads(file)",
        "train(net, optimizer)",
        "",
    ),
    "a new head": (
        "net = mlp()",
        "net[2] = nn.Linear(16, 3)",
        "train(net, optimizer)",
        "whose place was taken",
    ),
    "pruned by hand": (
        "net = mlp()",
        "net[2].weight = nn.Parameter(net[2].weight.detach()[:2].clone())\n"
        "net[2].bias = nn.Parameter(net[2].bias.detach()[:2].clone())",
        "train(net, optimizer)",
        "whose place was taken",
    ),
    "assigned from a checkpoint": (
        "net = mlp()\nstate = copy.deepcopy(net.state_dict())",
        "net.load_state_dict(state, assign=True)",
        "train(net, optimizer)",
        "load_state_dict(assign=True)",
    ),
    "made without values": (
        "with torch.device('meta'):\n    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))",
        "net.to_empty(device='cpu')\n[layer.reset_parameters() for layer in (net[0], net[2])]",
        "train(net, optimizer)",
        "the move or conversion in script.py line",
    ),
    "adapters in front of frozen weights": (
        """
net = mlp()
class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))
    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T
""",
        "net[0], net[2] = Adapted(net[0]), Adapted(net[2])",
        "train(net, optimizer)",
        "those optimizer holds are frozen",
    ),
    "changed long after the start": (
        "net = mlp()\ntrain(net, torch.optim.SGD(net.parameters(), 1e-2), 130)",
        "net[0].weight = nn.Parameter(torch.randn(16, 8))",
        "train(net, optimizer, 20)",
        "whose place was taken",
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_found_at_the_step_and_silent_when_the_optimizer_comes_afterwards(road):
    start, change, rest, how = ROADS[road]
    wrong = "\n".join([HEAD, BEGIN, start, ADAM, change, rest])
    right = "\n".join([HEAD, BEGIN, start, change, ADAM, rest])
    try:
        found = run_script(wrong, None, select=["OPT", "CPY"]).of("OPT001")
        corrected = run_script(right, None, select=["OPT", "CPY"])
    finally:
        _keep_parameters_on_conversion()

    assert len(found) == 1
    assert how in found[0].message
    assert "optimizer.step()" in found[0].site.source
    assert "net.parameters()" in found[0].fix
    assert loud(corrected) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("net.double().float()", id="conversion that keeps the parameters"),
        pytest.param("net, optimizer = copy.deepcopy((net, optimizer))", id="copied together"),
        pytest.param("net, optimizer = pickle.loads(pickle.dumps((net, optimizer)))", id="pickled together"),
        pytest.param(
            "from torch.nn.utils import prune\nprune.l1_unstructured(net[0], 'weight', 0.3)", id="pruned by a mask"
        ),
        pytest.param(
            "net[2] = nn.Linear(16, 5)\noptimizer.add_param_group({'params': net[2].parameters()})",
            id="new head in a group of its own",
        ),
    ],
)
def test_silent_where_the_optimizer_goes_along(change):
    report = run_script("\n".join([HEAD, BEGIN, "net = mlp()", ADAM, "train(net, optimizer)", change,
                                   "train(net, optimizer)"]), None, select=["OPT", "CPY"])  # fmt: skip

    assert loud(report) == []


def _keep_parameters_on_conversion():
    import torch

    torch.__future__.set_overwrite_module_params_on_conversion(False)
