from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT008",
        severity="error",
        names=["optimizer"],
        line="clip_grad_norm_",
        fix="between backward() and optimizer.step()",
    )


def test_silent_on_a_norm_that_is_only_measured():
    assert_silent("OPT008", LEGITIMATE)
