from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
old = torch.optim.Adam(net.parameters())
net(torch.ones(8, 4, device="cuda")).sum().backward()
old.step()
new = torch.optim.Adam(net.parameters())
new.load_state_dict(old.state_dict())
for _ in range(3):
    new.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    new.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT011", severity="error", names=["opt2", "opt1"], line="opt2.load_state_dict", fix="copy.deepcopy"
    )


def test_silent_on_a_rebuilt_optimizer():
    assert_silent("OPT011", LEGITIMATE)
