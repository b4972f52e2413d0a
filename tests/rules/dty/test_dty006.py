from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, run, silent

TOO_EARLY = """
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=1.0)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    opt.zero_grad()
    loss = net(torch.randn(8, 4, device="cuda")).pow(2).mean()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
"""

CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"


def test_clipped_while_scaled():
    finding = one(TOO_EARLY, "DTY006")

    assert finding.site.line == line(TOO_EARLY, "clip_grad_norm_")
    assert names(finding) == ["net.weight"]
    assert finding.count == 2
    assert "65536" in finding.message
    assert finding.fix == "scaler.unscale_(opt) before clip_grad_norm_"


def test_corrected_is_silent():
    silent(TOO_EARLY.replace("    nn.utils.clip", "    scaler.unscale_(opt)\n    nn.utils.clip"))


def test_value_clipping_and_a_divided_loss():
    source = TOO_EARLY.replace("clip_grad_norm_", "clip_grad_value_").replace(
        "scaler.scale(loss).backward()", "(scaler.scale(loss) / 4).backward()"
    )

    assert "clip_grad_value_" in one(source, "DTY006").message


@pytest.mark.parametrize(
    "source",
    [
        """
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    scaler.scale(net(torch.randn(8, 4, device="cuda")).pow(2).mean() / 2).backward()
    if step % 2:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
""",
        """
one, two = nn.Linear(4, 4).to("cuda"), nn.Linear(4, 1).to("cuda")
first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    first.zero_grad(), second.zero_grad()
    scaler.scale(two(one(torch.randn(8, 4, device="cuda"))).pow(2).mean()).backward()
    for part, opt in ((one, first), (two, second)):
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        scaler.step(opt)
    scaler.update()
""",
        """
scaled, plain = nn.Linear(4, 1).to("cuda"), nn.Linear(4, 1).to("cuda")
first, second = torch.optim.SGD(scaled.parameters(), lr=0.1), torch.optim.SGD(plain.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
x = torch.randn(8, 4, device="cuda")
for _ in range(3):
    first.zero_grad(), second.zero_grad()
    scaler.scale(scaled(x).pow(2).mean()).backward()
    plain(x).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    second.step()
    scaler.step(first)
    scaler.update()
""",
        TOO_EARLY.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'),
    ],
    ids=["accumulation", "two optimizers", "one scaled, one not", "switched off"],
)
def test_legitimate_patterns_are_silent(source):
    silent(source)


def test_stepped_without_the_scaler():
    source = TOO_EARLY.replace("    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n", "").replace(
        "    scaler.step(opt)\n    scaler.update()\n", "    opt.step()\n"
    )
    finding = one(source, "DTY006")

    assert finding.site.line == line(source, "opt.step()")
    assert names(finding) == ["net.weight", "opt"]
    assert finding.fix == "scaler.step(opt) in place of opt.step(), then scaler.update()"


def test_clamped_by_hand():
    source = TOO_EARLY.replace(CLIP, "net.weight.grad.data.clamp_(-1, 1)")
    finding = one(source, "DTY006")

    assert finding.site.line == line(source, "clamp_")
    assert names(finding) == ["net.weight"]
    assert finding.fix == "scaler.unscale_(opt) before .clamp_()"


def test_measured_by_hand_is_advice():
    finding = one(TOO_EARLY.replace(CLIP, "net.weight.grad.norm()"), "DTY006")

    assert finding.severity.name == "ADVICE"
    assert "as many times too large" in finding.message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    scaler.step(opt)\n",
            "    scaler.unscale_(opt)\n    scaler.unscale_(opt)\n",
            "was unscaled already in line",
        ),
        ("    scaler.update()\n", "", "the scaler has stepped opt already in line"),
        ("    scaler.update()\n", "    scaler.unscale_(opt)\n", "the scaler has stepped opt already in line"),
        ("scale(loss)", "scale(loss.detach().requires_grad_())", "no parameter of opt has a gradient"),
        ("scaler.scale(loss)", "loss", "no loss was scaled before it"),
    ],
    ids=["unscaled twice", "never updated", "unscaled after the step", "nothing to unscale", "never scaled"],
)
def test_a_scaler_called_out_of_order(old, new, said):
    source = TOO_EARLY.replace("    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n", "").replace(old, new)
    finding = one(source, "DTY006", may_raise=(RuntimeError, AssertionError))

    assert said in finding.message
    assert "opt" in finding.message or said.startswith("no loss")


@pytest.mark.parametrize(
    "between",
    [
        "nn.utils.clip_grad_norm_(net.parameters(), 1.0 * scaler.get_scale())",
        "norm = net.weight.grad.norm() / scaler.get_scale()",
        "[p.grad.mul_(1 / 65536) for p in net.parameters()]; nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ],
    ids=["scale in the limit", "norm divided by the scale", "unscaled by hand"],
)
def test_programs_that_know_of_the_scale_are_silent(between):
    report = run(TOO_EARLY.replace(CLIP, between))

    assert report.of("DTY006") == []


def test_unscaled_and_stepped_by_hand_is_silent():
    source = TOO_EARLY.replace(
        CLIP,
        "torch._foreach_div_([p.grad for p in net.parameters()], 65536)",
    ).replace("    scaler.step(opt)\n    scaler.update()\n", "    opt.step()\n")

    silent(source)
