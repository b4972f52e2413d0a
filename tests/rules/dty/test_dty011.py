from __future__ import annotations

from tests.rules.findings import line, names, one, silent

RESUMED = """
net = nn.Linear(4, 4).to("cuda").bfloat16()
opt = torch.optim.Adam(net.parameters())
saved = {
    index: {"step": torch.tensor(5.0), "exp_avg": torch.ones(p.shape), "exp_avg_sq": torch.ones(p.shape)}
    for index, p in enumerate(net.parameters())
}
opt.load_state_dict({"state": saved, "param_groups": opt.state_dict()["param_groups"]})
net(torch.randn(2, 4, device="cuda").bfloat16()).sum().backward()
opt.step()
"""


def test_moments_cast_to_the_dtype_of_the_parameters():
    finding = one(RESUMED, "DTY011")

    assert finding.severity.value == "warning"
    assert finding.site.line == line(RESUMED, "opt.load_state_dict")
    assert names(finding) == ["optimizer.state[net.weight]['exp_avg']", "net.weight", "opt"]
    assert "saved as float32" in finding.message
    assert "bfloat16" in finding.message


def test_corrected_is_silent():
    silent(
        RESUMED.split("net(torch.randn")[0]
        + "for i, p in enumerate(net.parameters()):\n"
        + "    opt.state[p].update({k: v.to('cuda') for k, v in saved[i].items() if k != 'step'})\n"
    )


def test_round_trip_is_silent():
    silent("""
for dtype in (torch.float32, torch.bfloat16):
    net = nn.Linear(4, 4).to("cuda").to(dtype)
    opt = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.randn(2, 4, device="cuda").to(dtype)).sum().backward()
        opt.step()
        opt.load_state_dict(opt.state_dict())
""")
