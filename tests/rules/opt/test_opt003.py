from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
experts = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]).to("cuda")
optimizer = torch.optim.SGD(experts.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    experts[0](torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT003", severity="warning", names=["body.weight", "optimizer"], line="optimizer = ", fix="use_reentrant=False"
    )


def test_silent_on_an_expert_that_is_not_chosen():
    assert_silent("OPT003", LEGITIMATE)
