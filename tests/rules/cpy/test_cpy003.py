from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

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
