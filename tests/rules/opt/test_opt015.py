from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
import tempfile
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
ddp(torch.ones(8, 4)).sum().backward()
ddp.eval().to("cuda")
with torch.no_grad():
    ddp.module(torch.ones(8, 4, device="cuda"))
dist.destroy_process_group()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT015", severity="error", names=["net.weight"], line="net.weight = ", fix="before it is wrapped"
    )


def test_silent_on_a_wrapped_model_that_is_moved_after_training():
    assert_silent("OPT015", LEGITIMATE)
