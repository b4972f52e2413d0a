from __future__ import annotations

from deviceguard.findings import Severity
from tests.rules.opt.expectations import HEAD, assert_page_example, assert_silent
from tests.scripts import run_script

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
ema = torch.optim.swa_utils.AveragedModel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
    ema.update_parameters(net)
with torch.no_grad():
    net(torch.ones(8, 4, device="cuda")), ema(torch.ones(8, 4, device="cuda"))
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("CPY003", severity="warning", names=["ema", "net"], line="ema = ", fix="evaluate and save ema")


def test_silent_on_both_are_evaluated():
    assert_silent("CPY003", LEGITIMATE)


HANDLER = """
import torch


class Handler:
    def __init__(self, source):
        self.average = torch.optim.swa_utils.AveragedModel(source)
        self.source = source

    def __call__(self):
        self.average.update_parameters(self.source)
"""

KEPT_BY_A_LIBRARY = """
from ema_of_a_library import Handler

net = nn.Linear(4, 1).to("cuda")
handlers = [Handler(net)]
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
    handlers[0]()
with torch.no_grad():
    net(torch.ones(8, 4, device="cuda"))
"""


def test_advice_for_an_average_that_a_library_keeps_to_itself(tmp_path, monkeypatch):
    """Whether its user wants it for another day cannot be told."""
    package = tmp_path / "site-packages" / "ema_of_a_library.py"
    package.parent.mkdir()
    package.write_text(HANDLER)
    monkeypatch.syspath_prepend(str(package.parent))

    report = run_script(HEAD + KEPT_BY_A_LIBRARY, "cuda", select=["CPY003"])

    (finding,) = report.findings
    assert finding.severity is Severity.ADVICE
