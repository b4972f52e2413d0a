from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
for _ in range(9):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("OPT016", severity="error", names=["optimizer"], line="optimizer.step()", fix="float32")


def test_silent_on_a_learning_rate_of_zero():
    assert_silent("OPT016", LEGITIMATE)
