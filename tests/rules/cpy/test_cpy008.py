from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
import tempfile
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
for _ in range(3):
    ddp(torch.ones(8, 4)).sum().backward()
    with torch.no_grad():
        ddp.module(torch.ones(8, 4))
dist.destroy_process_group()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("CPY008", severity="error", names=["ddp"], line="ddp.module(", fix="call ddp(...)")


def test_silent_on_the_inner_model_in_an_evaluation():
    assert_silent("CPY008", LEGITIMATE)
