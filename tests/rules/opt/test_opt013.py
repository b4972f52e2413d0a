from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
backbone, head = nn.Linear(4, 4).to("cuda").eval(), nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    head(backbone(torch.ones(8, 4, device="cuda"))).sum().backward()
    optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT013",
        severity="warning",
        names=["teacher", "student", "optimizer"],
        line="optimizer.step()",
        fix="teacher.requires_grad_(False)",
    )


def test_silent_on_a_backbone_in_eval_mode_before_a_head():
    assert_silent("OPT013", LEGITIMATE)
