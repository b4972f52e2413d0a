from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = None
    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Linear(4, 2).to(x.device)
        return self.layer(x)
net = Block()
for _ in range(3):
    net(torch.ones(2, 4, device="cuda"))
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT012", severity="error", names=["net"], line="return torch.nn.Linear", fix="in Block.__init__"
    )


def test_silent_on_a_layer_that_is_made_once_and_kept():
    assert_silent("OPT012", LEGITIMATE)
