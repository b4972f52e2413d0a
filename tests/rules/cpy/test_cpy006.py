from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(8, 4, device="cuda")).sum().backward()
optimizer.step()
net.load_state_dict(net.state_dict())
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "CPY006", severity="error", names=["target", "online"], line="target.load_state_dict", fix="online.state_dict()"
    )


def test_silent_on_one_round_trip_of_a_trained_model():
    assert_silent("CPY006", LEGITIMATE)
