from __future__ import annotations

from tests.rules.findings import line, names, one, silent

HALF = """
net = nn.Linear(4, 1).to("cuda").half()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
x = torch.randn(8, 4, device="cuda").half()
scaler.scale(net(x).float().pow(2).mean()).backward()
scaler.step(opt)
scaler.update()
"""


def test_scaler_over_half_parameters():
    finding = one(HALF, "DTY005")

    assert finding.site.line == line(HALF, "scaler.step(opt)")
    assert names(finding) == ["net.weight", "opt"]
    assert finding.subjects[0].dtype == "float16"
    assert "net.weight and 1 more of opt are float16" in finding.message


CORRECTED = """
net = nn.Linear(4, 1).to("cuda")
frozen = nn.Linear(4, 4).to("cuda").half().requires_grad_(False)
opt = torch.optim.SGD([*net.parameters(), *frozen.parameters()], lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(frozen(torch.randn(8, 4, device="cuda"))).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


def test_corrected_is_silent():
    silent(CORRECTED)


def test_scaler_that_is_switched_off_is_silent():
    silent(HALF.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)').replace(".half()", ".bfloat16()"))
