from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner, self.defaults, self.state = inner, inner.defaults, inner.state
        self.param_groups = inner.param_groups
    def step(self, closure=None):
        return self.inner.step()
net = nn.Linear(4, 1).to("cuda")
optimizer = Wrapper(torch.optim.SGD(net.parameters(), lr=0.1))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(4):
    optimizer.inner.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
    scheduler.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT009", severity="error", names=["optimizer"], line="scheduler.step()", fix="build the scheduler"
    )


def test_silent_on_a_wrapper_that_shares_the_groups():
    assert_silent("OPT009", LEGITIMATE)
