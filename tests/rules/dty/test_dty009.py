from __future__ import annotations

from tests.rules.findings import line, names, one, run, silent

UNDERFLOW = """
net = nn.Linear(4, 4).to("cuda")
weight = net.weight.to(torch.float16)
y = torch.randn(8, 4, device="cuda").to(torch.float16) @ weight.T
(y.float() * 1e-9).sum().backward()
"""


def test_gradients_that_underflow():
    finding = one(UNDERFLOW, "DTY009")

    assert finding.severity.value == "warning"
    assert finding.site.line == line(UNDERFLOW, ".backward()")
    assert names(finding) == ["net.weight"]
    assert "exactly zero" in finding.message


def test_corrected_is_silent():
    silent(UNDERFLOW.replace("torch.float16", "torch.bfloat16"))


AUTOCAST = """
net = nn.Linear(4, 4).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(torch.randn(8, 4, device="cuda")).float().pow(2).mean()
    loss.backward()
    opt.step()
"""


def test_gradients_that_arrive_are_advice():
    (finding,) = run(AUTOCAST).of("DTY009")

    assert finding.severity.value == "advice"


def test_with_a_scaler_is_silent():
    source = (
        AUTOCAST.replace("for _", 'scaler = torch.amp.GradScaler("cuda")\nfor _')
        .replace("loss.backward()", "scaler.scale(loss).backward()")
        .replace("opt.step()", "scaler.step(opt)\n    scaler.update()")
    )

    assert run(source).of("DTY009") == []


def test_loss_of_zero_is_silent():
    silent(UNDERFLOW.replace("1e-9", "0.0"))


def test_the_scaled_loss_is_thrown_away():
    source = """
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = net(torch.randn(8, 4, device="cuda")).pow(2).mean()
scaler.scale(loss)
loss.backward()
scaler.step(opt)
scaler.update()
"""
    finding = one(source, "DTY009")

    assert finding.site.line == line(source, "loss.backward()")
    assert finding.severity.name == "WARNING"
    assert finding.fix == "scaler.scale(loss).backward()"
