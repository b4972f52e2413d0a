"""Correct training programs that only look wrong: all rules must be silent on them at warning and above."""

from __future__ import annotations

import pytest

from tests.scripts import loud, run_script

HEAD = """
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
class Net(nn.Module):
    def __init__(self, inputs=4, outputs=2):
        super().__init__()
        self.body, self.head = nn.Linear(inputs, 8), nn.Linear(8, outputs)
    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))
def batch(inputs=4):
    return torch.randn(8, inputs, device=device)
"""

PROGRAMS = {
    "gan": """
        G, D = Net(4, 4).to(device), Net(4, 1).to(device)
        og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
        for _ in range(6):
            z, real = batch(), batch() + 3
            od.zero_grad()
            (F.softplus(D(G(z).detach())).mean() + F.softplus(-D(real)).mean()).backward()
            od.step()
            og.zero_grad()
            F.softplus(-D(G(z))).mean().backward()
            og.step()
    """,
    "dqn": """
        q, target = Net().to(device), Net().to(device)
        target.load_state_dict(q.state_dict())
        opt = torch.optim.Adam(q.parameters(), 1e-2)
        for step in range(12):
            with torch.no_grad():
                td = 1 + 0.9 * target(batch()).max(1).values
            opt.zero_grad()
            F.mse_loss(q(batch()).max(1).values, td).backward()
            opt.step()
            if step % 4 == 3:
                target.load_state_dict(q.state_dict())
        with torch.no_grad():
            q(batch())
    """,
    "polyak_target": """
        actor, critic = Net(4, 1).to(device), Net(5, 1).to(device)
        actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
        ao, co = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
        for _ in range(6):
            s, a, s2 = batch(), torch.randn(8, 1, device=device), batch()
            with torch.no_grad():
                y = 1 + 0.9 * critic_target(torch.cat([s2, actor_target(s2)], 1))
            co.zero_grad()
            F.mse_loss(critic(torch.cat([s, a], 1)), y).backward()
            co.step()
            ao.zero_grad()
            (-critic(torch.cat([s, actor(s)], 1)).mean()).backward()
            ao.step()
            for target, net in ((actor_target, actor), (critic_target, critic)):
                for t, p in zip(target.parameters(), net.parameters()):
                    t.data.copy_(0.99 * t.data + 0.01 * p.data)
        actor.eval()
        actor(batch())
    """,
    "first_order_maml": """
        net = Net().to(device)
        outer = torch.optim.SGD(net.parameters(), 0.05)
        for _ in range(5):
            outer.zero_grad()
            for task in range(2):
                learner = copy.deepcopy(net)
                inner = torch.optim.SGD(learner.parameters(), 0.1)
                for _ in range(2):
                    inner.zero_grad()
                    learner(batch()).pow(2).mean().backward()
                    inner.step()
                inner.zero_grad()
                learner(batch()).pow(2).mean().backward()
                for p, lp in zip(net.parameters(), learner.parameters()):
                    p.grad = lp.grad.clone() if p.grad is None else p.grad + lp.grad
            outer.step()
        net(batch())
    """,
    "federated_averaging": """
        server = Net().to(device)
        for round in range(3):
            states = []
            for client in range(3):
                local = copy.deepcopy(server)
                opt = torch.optim.SGD(local.parameters(), 0.1)
                for _ in range(3):
                    opt.zero_grad()
                    local(batch()).pow(2).mean().backward()
                    opt.step()
                states.append(local.state_dict())
            mean = {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}
            server.load_state_dict(mean)
        server.eval()
        with torch.no_grad():
            server(batch())
    """,
    "hand_written_ema": """
        net = Net().to(device)
        ema = copy.deepcopy(net).requires_grad_(False)
        opt = torch.optim.AdamW(net.parameters(), 1e-2)
        for _ in range(8):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
            with torch.no_grad():
                for e, p in zip(ema.parameters(), net.parameters()):
                    e.lerp_(p, 0.1)
        ema.eval()
        with torch.no_grad():
            ema(batch())
            net(batch())
    """,
    "lora": """
        class LoRA(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base.requires_grad_(False)
                self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
                self.b = nn.Parameter(torch.zeros(base.out_features, 2))
            def forward(self, x):
                return self.base(x) + x @ self.a.T @ self.b.T
        net = Net()
        net.requires_grad_(False)
        net.body, net.head = LoRA(net.body), LoRA(net.head)
        net.to(device)
        opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2)
        for _ in range(5):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "dpo": """
        policy = Net().to(device)
        ref = copy.deepcopy(policy).eval()
        for p in ref.parameters():
            p.requires_grad = False
        opt = torch.optim.AdamW(policy.parameters(), 1e-2)
        for _ in range(5):
            good, bad = batch(), batch()
            with torch.no_grad():
                margin = ref(good) - ref(bad)
            opt.zero_grad()
            (-F.logsigmoid(policy(good) - policy(bad) - margin)).mean().backward()
            opt.step()
        torch.save(policy.state_dict(), __import__("io").BytesIO())
    """,
    "unfrozen_reference": """
        policy = Net().to(device)
        ref = copy.deepcopy(policy)
        opt = torch.optim.AdamW(policy.parameters(), 1e-2)
        for _ in range(5):
            x = batch()
            with torch.no_grad():
                target = ref(x)
            opt.zero_grad()
            F.mse_loss(policy(x), target + 1).backward()
            opt.step()
    """,
    "mixture_of_experts": """
        class MoE(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(4, 4)
                self.experts = nn.ModuleList([nn.Linear(4, 2) for _ in range(4)])
            def forward(self, x):
                weights = self.gate(x).softmax(-1)
                chosen = 0
                return weights[:, chosen : chosen + 1] * self.experts[chosen](x)
        net = MoE().to(device)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(5):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "a3c": """
        shared = Net()
        local = copy.deepcopy(shared).to(device)
        opt = torch.optim.Adam(shared.parameters(), 1e-2)
        for _ in range(5):
            local.load_state_dict(shared.state_dict())
            local.zero_grad()
            opt.zero_grad()
            local(batch()).pow(2).mean().backward()
            for p, lp in zip(shared.parameters(), local.parameters()):
                p.grad = lp.grad.cpu()
            opt.step()
    """,
    "master_copies": """
        net = Net().to(device).bfloat16()
        master = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
        opt = torch.optim.SGD(master, 0.1)
        for _ in range(5):
            net.zero_grad()
            net(batch().bfloat16()).float().pow(2).mean().backward()
            for m, p in zip(master, net.parameters()):
                m.grad = p.grad.float()
            opt.step()
            with torch.no_grad():
                for m, p in zip(master, net.parameters()):
                    p.copy_(m)
    """,
    "folds": """
        scores = []
        for fold in range(3):
            net = Net().to(device)
            opt = torch.optim.Adam(net.parameters(), 1e-2)
            for _ in range(4):
                opt.zero_grad()
                net(batch()).pow(2).mean().backward()
                opt.step()
            net.eval()
            with torch.no_grad():
                scores.append(net(batch()).mean())
    """,
    "ensemble": """
        nets = [Net().to(device) for _ in range(3)]
        opts = [torch.optim.Adam(net.parameters(), 1e-2) for net in nets]
        for net, opt in zip(nets, opts):
            for _ in range(4):
                opt.zero_grad()
                net(batch()).pow(2).mean().backward()
                opt.step()
        with torch.no_grad():
            torch.stack([net(batch()) for net in nets]).mean(0)
    """,
    "frozen_then_unfrozen": """
        net = Net().to(device)
        net.body.requires_grad_(False)
        opt = torch.optim.Adam(net.head.parameters(), 1e-2)
        for epoch in range(6):
            if epoch == 3:
                net.body.requires_grad_(True)
                opt.add_param_group({"params": net.body.parameters()})
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "head_first_then_all": """
        net = Net().to(device)
        opt = torch.optim.Adam(net.head.parameters(), 1e-2)
        for _ in range(4):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        for _ in range(4):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "accumulation": """
        net = Net().to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for micro in range(16):
            (net(batch()).pow(2).mean() / 4).backward()
            if micro % 4 == 3:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
    """,
    "warm_up_from_zero": """
        net = Net().to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 8))
        for _ in range(12):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
            sched.step()
    """,
    "lbfgs": """
        net = Net().to(device)
        opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
        x = batch()
        def closure():
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            return loss
        for _ in range(4):
            opt.step(closure)
    """,
    "style_transfer": """
        features = Net().to(device).eval()
        image = torch.randn(8, 4, device=device, requires_grad=True)
        target = features(batch()).detach()
        opt = torch.optim.Adam([image], 0.1)
        for _ in range(6):
            opt.zero_grad()
            F.mse_loss(features(image), target).backward()
            opt.step()
    """,
    "hand_written_sgd": """
        net = Net().to(device)
        for _ in range(6):
            net.zero_grad()
            net(batch()).pow(2).mean().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
        net(batch())
    """,
    "hand_written_sgd_beside_an_optimizer": """
        body, head = nn.Linear(4, 4).to(device), nn.Linear(4, 2).to(device)
        opt = torch.optim.SGD(body.parameters(), 0.1)
        for _ in range(6):
            opt.zero_grad()
            head.zero_grad()
            head(body(batch())).pow(2).mean().backward()
            opt.step()
            for p in head.parameters():
                p.data -= 0.1 * p.grad
    """,
    "adversarial_examples": """
        net = Net().to(device)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(6):
            x = batch().requires_grad_()
            grad, = torch.autograd.grad(net(x).pow(2).mean(), x)
            opt.zero_grad()
            net((x + 0.1 * grad.sign()).detach()).pow(2).mean().backward()
            opt.step()
        net.eval()
        for _ in range(4):
            x = batch().requires_grad_()
            net(x).sum().backward()
    """,
    "early_stopping": """
        net = Net().to(device)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        best, best_state = float("inf"), None
        for _ in range(6):
            opt.zero_grad()
            loss = net(batch()).pow(2).mean()
            loss.backward()
            opt.step()
            if float(loss.detach()) < best:
                best, best_state = float(loss.detach()), copy.deepcopy(net.state_dict())
        net.load_state_dict(best_state)
        net.eval()
        net(batch())
    """,
    "rebuilt_optimizer": """
        net = Net().to(device)
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(3):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
        state = opt.state_dict()
        opt = torch.optim.Adam(net.parameters(), 1e-2)
        opt.load_state_dict(state)
        for _ in range(3):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "average_swapped_and_restored": """
        net = Net().to(device)
        swa = torch.optim.swa_utils.AveragedModel(net)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for epoch in range(3):
            for _ in range(3):
                opt.zero_grad()
                net(batch()).pow(2).mean().backward()
                opt.step()
                swa.update_parameters(net)
            raw = copy.deepcopy(net.state_dict())
            net.load_state_dict(swa.module.state_dict())
            with torch.no_grad():
                net(batch())
            net.load_state_dict(raw)
    """,
    "partial_load": """
        net = Net().to(device)
        body = {k: v.clone() for k, v in net.state_dict().items() if k.startswith("body")}
        net.load_state_dict(body, strict=False)
        net(batch())
    """,
    "frozen_batch_norm": """
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            net.train()
            net[1].eval()
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "norm_measured_after_the_step": """
        net = Net().to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    """,
    "two_optimizers_on_one_loss": """
        body, head = nn.Linear(4, 4).to(device), nn.Linear(4, 2).to(device)
        one, two = torch.optim.SGD(body.parameters(), 0.1), torch.optim.Adam(head.parameters(), 0.1)
        for _ in range(5):
            one.zero_grad()
            two.zero_grad()
            head(body(batch())).pow(2).mean().backward()
            one.step()
            two.step()
    """,
    "pruned": """
        from torch.nn.utils import prune
        net = Net().to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        prune.l1_unstructured(net.body, "weight", amount=0.5)
        for _ in range(4):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "parametrized": """
        net = Net()
        nn.utils.parametrizations.weight_norm(net.body)
        net.to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
    """,
    "grad_scaler": """
        net = Net().to(device)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda" if device.type == "cuda" else "cpu")
        for step in range(6):
            opt.zero_grad()
            loss = net(batch()).pow(2).mean()
            scaler.scale(loss * float("inf") if step < 4 else loss).backward()
            scaler.step(opt)
            scaler.update()
    """,
    "baseline_beside_the_trained_model": """
        net = Net().to(device)
        baseline = copy.deepcopy(net)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            opt.zero_grad()
            net(batch()).pow(2).mean().backward()
            opt.step()
        net.eval()
        baseline.eval()
        with torch.no_grad():
            baseline(batch())
            net(batch())
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_correct_program_is_silent(name):
    report = run_script(HEAD + _dedented(PROGRAMS[name]), "cuda", select=["OPT", "CPY"])

    assert loud(report) == []
    assert report.internal_errors == 0


def _dedented(source):
    return "\n".join(line.removeprefix(" " * 8) for line in source.splitlines())
