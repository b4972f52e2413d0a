"""Training loops of the tests of this folder, run on a real XLA device where there is one, else on a simulated one."""

from __future__ import annotations

import importlib.util
import textwrap

from deviceguard.findings import Finding
from deviceguard.reports.report import Report
from tests.scripts import line_of, plain, run_script

SIMULATED = None if importlib.util.find_spec("torch_xla") is not None else "xla"
HEAD = plain(
    """
    import torch, torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.parallel_loader as pl
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    device = torch.device("xla")
    net = nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    """
)


def script(body: str, head: str = HEAD) -> str:
    return head + textwrap.dedent(body).lstrip("\n")


def run(body: str, head: str = HEAD) -> Report:
    return run_script(script(body, head), simulate=SIMULATED)


def only(report: Report, code: str) -> Finding:
    found = report.of(code)
    assert len(found) == 1, report.findings
    return found[0]


def line(body: str, text: str, head: str = HEAD) -> int:
    return line_of(script(body, head), text)
