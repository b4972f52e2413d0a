from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for micro in range(16):
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    if micro % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT005",
        severity="warning",
        names=["net.weight", "optimizer"],
        line="optimizer.step()",
        fix="optimizer.zero_grad()",
    )


def test_silent_on_accumulation_over_four_passes():
    assert_silent("OPT005", LEGITIMATE)
