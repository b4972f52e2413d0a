from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    norm = nn.utils.clip_grad_norm_((p for p in net.parameters()), 0.5)
    assert float(norm) > 0.5
    optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("OPT007", severity="error", names=[], line="clip_grad_norm_", fix="params = list")


def test_silent_on_a_generator_that_is_given_anew():
    assert_silent("OPT007", LEGITIMATE)
