from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
import copy
net = nn.Linear(4, 1).to("cuda")
baseline = copy.deepcopy(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(8, 4, device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
baseline(x), net(x)
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "CPY001", severity="error", names=["model", "net"], line="score = model(x)", fix="net.state_dict()"
    )


def test_silent_on_a_baseline_evaluated_beside_the_trained_model():
    assert_silent("CPY001", LEGITIMATE)
