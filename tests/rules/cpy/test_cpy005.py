from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
import copy
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(8, 4, device="cuda")
best = copy.deepcopy(net.state_dict())
for epoch in range(3):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
    net.load_state_dict(best)
    with torch.no_grad():
        net(x)
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("CPY005", severity="error", names=["net"], line="score = net(x)", fix="after the evaluation")


def test_silent_on_a_best_state_that_is_loaded_again():
    assert_silent("CPY005", LEGITIMATE)
