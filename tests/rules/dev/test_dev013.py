from __future__ import annotations

from tests.rules.findings import line, names, one, silent

ALL_MOVED = """
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.Adam(net.parameters())
for _ in range(2):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).sum().backward()
    opt.step()
    for state in opt.state.values():
        for key, value in state.items():
            state[key] = value.to("cuda")
"""


def test_step_moved_with_the_rest_of_the_state():
    finding = one(ALL_MOVED, "DEV013")

    assert finding.severity.value == "warning"
    assert finding.site.line == line(ALL_MOVED, "opt.step()")
    assert names(finding) == ["optimizer.state[net.weight]['step']", "net.weight", "opt"]
    assert "reads 2 such counter(s)" in finding.message


def test_corrected_is_silent():
    silent(ALL_MOVED.replace('value.to("cuda")', 'value if key == "step" else value.to("cuda")'))


def test_asgd_keeps_its_counter_on_the_device_by_itself():
    silent(ALL_MOVED.replace("Adam(", "ASGD(").split("    for state")[0])


def test_capturable_is_silent():
    silent("""
net = nn.Linear(4, 1).to("cuda")
opt = torch.optim.Adam(net.parameters(), fused=True)
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(8, 4, device="cuda")).sum().backward()
    opt.step()
""")
