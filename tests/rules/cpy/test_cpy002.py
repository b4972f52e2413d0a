from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
import io
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
best = net.state_dict()
torch.save(best, io.BytesIO())
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "CPY002",
        severity="error",
        names=["net"],
        line="net.load_state_dict(best)",
        fix="copy.deepcopy(net.state_dict())",
    )


def test_silent_on_a_state_that_is_saved_at_once():
    assert_silent("CPY002", LEGITIMATE)
