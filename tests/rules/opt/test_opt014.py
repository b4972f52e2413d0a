from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1, device="meta")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net.to_empty(device="cuda")
net.reset_parameters()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(8, 4, device="cuda")).sum().backward()
optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT014", severity="error", names=["optimizer"], line="optimizer.step()", fix="after to_empty()"
    )


def test_silent_on_an_optimizer_that_never_steps():
    assert_silent("OPT014", LEGITIMATE)
