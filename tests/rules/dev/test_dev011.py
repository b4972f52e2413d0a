from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")

TRACED = """
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x) + torch.zeros(x.size(0), 1, device=x.device)

traced = torch.jit.trace(Positions(), torch.randn(2, 3), check_trace=False)
traced.to("cuda")
traced(torch.randn(2, 3, device="cuda"))
"""


def test_trace_made_on_the_host():
    finding = one(TRACED, "DEV011")

    assert finding.site.line == line(TRACED, "traced(torch.randn")
    assert names(finding) == ["traced"]
    assert "holds cpu as a constant" in finding.message
    assert "'cuda:0'" in finding.fix


def test_trace_made_where_it_runs_is_silent():
    silent(TRACED.replace("Positions(), torch.randn(2, 3)", 'Positions().to("cuda"), torch.randn(2, 3, device="cuda")'))


def test_trace_without_a_device_in_it_is_silent():
    silent(TRACED.replace(" + torch.zeros(x.size(0), 1, device=x.device)", ""))


EXPORTED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) + torch.ones(x.size(0), 4, device=x.device)

program = torch.export.export(Net(), (torch.randn(2, 4),))
net = program.module()
net.to("cuda")
net(torch.randn(2, 4).to("cuda"))
"""


def test_an_exported_program_that_was_moved():
    finding = one(EXPORTED, "DEV011")

    assert finding.site.line == line(EXPORTED, 'net(torch.randn(2, 4).to("cuda"))')
    assert names(finding) == ["net"]
    assert "its graph holds cpu as a constant" in finding.message


def test_an_exported_program_that_stays_where_it_was_exported():
    silent(EXPORTED.replace('.to("cuda")', ""))
