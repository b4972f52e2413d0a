from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("cuda")
first = torch.optim.Adam(net.parameters())
net(torch.ones(8, 4, device="cuda")).sum().backward()
first.step()
second = torch.optim.Adam(net.parameters())
second.load_state_dict(first.state_dict())
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT010", severity="error", names=["resumed"], line="resumed.load_state_dict", fix="order of the run"
    )


def test_silent_on_a_state_in_the_same_order():
    assert_silent("OPT010", LEGITIMATE)
