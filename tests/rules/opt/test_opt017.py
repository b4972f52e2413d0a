from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=1e-8)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step)
for _ in range(12):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).mean().backward()
    optimizer.step()
    scheduler.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT017", severity="advice", names=["optimizer"], line="optimizer.step()", fix="raise the learning rate"
    )


def test_silent_on_a_rate_that_a_schedule_sets():
    assert_silent("OPT017", LEGITIMATE)
