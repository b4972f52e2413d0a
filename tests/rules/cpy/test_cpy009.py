from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
class Cached(nn.Module):
    last = None
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, device="cuda"))
    def forward(self, x):
        self.last = x
        return x * self.w
net = Cached()
for _ in range(3):
    replica = net._replicate_for_data_parallel()
    replica.w = net.w
    replica(torch.ones(2, 4, device="cuda"))
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "CPY009", severity="warning", names=["net"], line="replica(torch.ones", fix="self.level.copy_(...)"
    )


def test_silent_on_a_cache_of_the_pass():
    assert_silent("CPY009", LEGITIMATE)
