from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    net(torch.ones(8, 4, device="cuda")).sum().backward()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("OPT004", severity="error", names=["optimizer"], line=".backward()", fix="optimizer.step()")


def test_silent_on_gradients_that_are_only_looked_at():
    assert_silent("OPT004", LEGITIMATE)
