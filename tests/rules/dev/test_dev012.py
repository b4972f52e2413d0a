from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

MOVED_LATE = """
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
net(torch.randn(8, 4)).sum().backward()
opt.step()
opt.zero_grad()
net.to("cuda")
net(torch.randn(8, 4, device="cuda")).sum().backward()
opt.step()
"""


def test_model_moved_after_the_state_was_made():
    finding = one(MOVED_LATE, "DEV012")

    assert finding.site.line == line(MOVED_LATE, "opt.step()", 2)
    assert names(finding) == ["optimizer.state[net.weight]['exp_avg']", "net.weight", "opt"]
    assert finding.subjects[0].device == "cpu"
    assert finding.subjects[1].device == "cuda:0"


def test_corrected_is_silent():
    silent(
        MOVED_LATE.replace(
            'net.to("cuda")\n',
            'net.to("cuda")\nstate = opt.state_dict()\n'
            "opt = torch.optim.Adam(net.parameters())\nopt.load_state_dict(state)\n",
        )
    )


@pytest.mark.parametrize(
    ("made", "key"),
    [
        ("SGD(net.parameters(), lr=0.1, momentum=0.9)", "momentum_buffer"),
        ("RMSprop(net.parameters())", "square_avg"),
        ("Adagrad(net.parameters())", "sum"),
        ("AdamW(net.parameters(), foreach=False)", "exp_avg"),
    ],
)
def test_optimizers_of_all_kinds(made, key):
    finding = one(MOVED_LATE.replace("Adam(net.parameters(), lr=0.01)", made), "DEV012")

    assert finding.subjects[0].name == f"optimizer.state[net.weight][{key!r}]"


@pytest.mark.parametrize("made", ["SGD(net.parameters(), lr=0.1)", "AdamW(net.parameters())", "ASGD(net.parameters())"])
def test_ordinary_training_is_silent(made):
    silent(f"""
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.{made}
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).sum().backward()
    opt.step()
net.cpu()
net(torch.randn(2, 4))
""")


def test_offloaded_state_of_an_optimizer_of_the_users_is_silent():
    silent("""
class Offloaded(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("momentum", torch.zeros(p.shape))
                state["momentum"].mul_(0.9).add_(p.grad.cpu())
                p.add_(state["momentum"].to(p.device), alpha=-group["lr"])

net = nn.Linear(4, 1).to("cuda")
opt = Offloaded(net.parameters())
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).sum().backward()
    opt.step()
""")
