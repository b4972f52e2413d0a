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


OWN = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["avg"] = torch.zeros(p.shape)
                avg = state["avg"]
                avg.lerp_(p.grad, 0.1)
                p.sub_(avg, alpha=group["lr"])

net = nn.Linear(4, 1).to("cuda")
opt = Momentum(net.parameters())
net(torch.randn(8, 4, device="cuda")).sum().backward()
opt.step()
"""


def test_state_that_an_optimizer_of_ones_own_makes():
    finding = one(OWN, "DEV012")

    assert finding.site.line == line(OWN, "avg.lerp_")
    assert names(finding) == ["optimizer.state[net.weight]['avg']", "net.weight", "opt"]
    assert f"It comes from line {line(OWN, 'torch.zeros(p.shape)')}" in finding.message
    assert finding.fix.startswith("torch.zeros(..., device=p.device)")


def test_state_of_ones_own_on_the_device_is_silent():
    silent(OWN.replace("torch.zeros(p.shape)", "torch.zeros_like(p)"))


def test_state_of_ones_own_kept_on_the_host_on_purpose():
    silent(
        OWN.replace("avg.lerp_(p.grad, 0.1)", "avg.lerp_(p.grad.cpu(), 0.1)").replace(
            "p.sub_(avg,", "p.sub_(avg.to(p.device),"
        )
    )


def test_loaded_before_the_model_was_moved():
    source = """
saved = nn.Linear(4, 1)
old = torch.optim.SGD(saved.parameters(), lr=0.1, momentum=0.9)
saved(torch.randn(8, 4)).sum().backward()
old.step()
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
opt.load_state_dict(old.state_dict())
net.to("cuda")
net(torch.randn(8, 4, device="cuda")).sum().backward()
opt.step()
"""
    finding = one(source, "DEV012")

    assert f"load_state_dict() in line {line(source, 'opt.load_state')} put it" in finding.message
    assert finding.fix == "move the model before optimizer.load_state_dict()"


def test_a_capturable_step_counter_on_the_host():
    source = """
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.Adam(net.parameters(), capturable=True)
for _ in range(2):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).sum().backward()
    opt.step()
    for state in opt.state.values():
        state["step"] = state["step"].cpu()
"""
    finding = one(source, "DEV012", may_raise=(RuntimeError, AssertionError))

    assert names(finding)[0] == "optimizer.state[net.weight]['step']"
    assert "a capturable or fused step takes its counter there only" in finding.message
