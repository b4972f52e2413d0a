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


WRAPPED = """
class Wrapper(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)


net = nn.Linear(4, 1).to("cuda")
inner = torch.optim.AdamW(net.parameters(), lr=0.1, fused=True)
optimizer = Wrapper(inner)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
for index in range(8):
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    if index % 2:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""


def test_silent_on_a_wrapper_whose_inner_optimizer_steps():
    assert_silent("OPT004", WRAPPED)
