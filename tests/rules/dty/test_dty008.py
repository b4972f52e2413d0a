from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, run, silent

ONE_REGION = """
net = nn.Linear(4, 4).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.bfloat16):
    for _ in range(3):
        opt.zero_grad()
        net(torch.randn(8, 4, device="cuda")).float().pow(2).mean().backward()
        opt.step()
"""


def test_stepped_inside_one_region():
    finding = one(ONE_REGION, "DTY008")

    assert finding.severity.value == "error"
    assert finding.site.line == line(ONE_REGION, "net(torch.randn")
    assert names(finding) == ["net.weight"]
    assert f"stepped in line {line(ONE_REGION, 'opt.step()')}" in finding.message


CORRECTED = """
net = nn.Linear(4, 4).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        net(torch.randn(8, 4, device="cuda")).float().pow(2).mean().backward()
        opt.step()
"""


def test_a_region_for_each_step_is_silent():
    silent(CORRECTED)


@pytest.mark.parametrize(
    "source",
    [
        ONE_REGION.replace("opt.step()", "opt.step()\n        torch.clear_autocast_cache()"),
        ONE_REGION.replace("dtype=torch.bfloat16", "dtype=torch.bfloat16, cache_enabled=False"),
        ONE_REGION.replace('"cuda", dtype', '"cpu", dtype'),
    ],
    ids=["cleared by hand", "no cache", "another device"],
)
def test_regions_that_keep_no_cast_are_silent(source):
    silent(source)


WITHOUT_GRADIENTS_FIRST = """
net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("cuda")
x = torch.randn(8, 4, device="cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    with torch.no_grad():
        net(x)
    out = net(x)
"""


@pytest.mark.parametrize(("loses", "severity"), [(True, "error"), (False, "advice")])
def test_pass_without_gradients_first(monkeypatch, loses, severity):
    from deviceguard.rules.dty import dty008_autocast_stale_cache as rule

    monkeypatch.setattr(rule, "_loses_gradients", lambda: loses)
    (finding,) = run(WITHOUT_GRADIENTS_FIRST).of("DTY008")

    assert finding.severity.value == severity
    assert finding.site.line == line(WITHOUT_GRADIENTS_FIRST, "out = net(x)")
    assert names(finding) == ["net[0].weight", "net"]


def test_cache_cleared_between_is_silent():
    source = WITHOUT_GRADIENTS_FIRST.replace("    out =", "    torch.clear_autocast_cache()\n    out =")

    assert run(source).of("DTY008") == []
