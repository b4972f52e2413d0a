from __future__ import annotations

from tests.rules.findings import line, names, run, silent

TOGETHER = """
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = net(torch.randn(8, 4, device="cuda")).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


def test_scaler_with_bfloat16_autocast_is_advice():
    (finding,) = run(TOGETHER).of("DTY007")

    assert finding.severity.value == "advice"
    assert finding.site.line == line(TOGETHER, "scaler.step(opt)")
    assert names(finding) == ["scaler"]
    assert finding.fix.startswith("scaler = torch.amp.GradScaler(enabled=False)")


def test_bfloat16_gradients_are_a_warning():
    source = TOGETHER.replace('.to("cuda")', '.to("cuda").bfloat16()').replace(
        'torch.randn(8, 4, device="cuda")', 'torch.randn(8, 4, device="cuda").bfloat16()'
    )
    (finding,) = run(source, may_raise=Exception).of("DTY007")

    assert finding.severity.value == "warning"
    assert names(finding) == ["scaler", "net.weight"]


def test_corrected_is_silent():
    silent(TOGETHER.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'))


def test_float16_is_silent():
    assert run(TOGETHER.replace("bfloat16", "float16")).of("DTY007") == []
