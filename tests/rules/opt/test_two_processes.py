"""The rules on DDP, for real: two processes under torchrun, gloo on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import sys
import warnings
import torch
import torch.distributed as dist
from torch import nn
import deviceguard
warnings.simplefilter("ignore")
mode = sys.argv[1]
dist.init_process_group("gloo")
with deviceguard.watch(select=["OPT", "CPY"]) as report:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = nn.parallel.DistributedDataParallel(net, find_unused_parameters=mode == "replaced")
    if mode == "replaced":
        net[1].weight = nn.Parameter(torch.zeros(1, 4))
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        torch.manual_seed(10 * step + dist.get_rank())
        opt.zero_grad()
        (ddp.module if mode == "bypassed" else ddp)(torch.randn(8, 4)).pow(2).mean().backward()
        opt.step()
    torch.save(ddp.module.state_dict(), sys.argv[2] + str(dist.get_rank()))
dist.destroy_process_group()
print("FOUND", sorted({f.rule for f in report.findings}), report.internal_errors, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("mode", "expected"), [("replaced", "OPT015"), ("bypassed", "CPY008"), ("right", "")])
def test_each_rank_is_told(mode, expected, processes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [*command, str(script), mode, str(tmp_path / "state")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    wanted = f"FOUND {[expected] if expected else []} 0"
    assert done.stdout.count(wanted) == processes, done.stdout
