from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

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
