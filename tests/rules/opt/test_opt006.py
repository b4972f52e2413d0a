from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
body, head = nn.Linear(4, 4).to("cuda"), nn.Linear(4, 1).to("cuda")
one, two = torch.optim.SGD(body.parameters(), 0.1), torch.optim.SGD(head.parameters(), 0.1)
for _ in range(3):
    one.zero_grad()
    two.zero_grad()
    head(body(torch.ones(8, 4, device="cuda"))).sum().backward()
    one.step()
    two.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT006", severity="warning", names=["D.weight", "opt_d"], line="opt_d.step()", fix="opt_d.zero_grad()"
    )


def test_silent_on_two_optimizers_that_step_on_one_loss():
    assert_silent("OPT006", LEGITIMATE)
