from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)]).to("cuda")
net.load_state_dict({"3.bias": torch.zeros(4)}, strict=False)
net(torch.ones(8, 4, device="cuda"))
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "CPY007", severity="error", names=["net"], line="net.load_state_dict(state, strict=False)", fix="removeprefix"
    )


def test_silent_on_an_adapter_all_of_whose_keys_match():
    assert_silent("CPY007", LEGITIMATE)
