from __future__ import annotations

from tests.rules.loops import at, cost, found, quiet

SLOW = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((8,), float(index))

net = torch.nn.Linear(8, 1).to("cuda")
for rows in torch.utils.data.DataLoader(Slow(), batch_size=4):
    net(rows.to("cuda")).sum().backward()
"""
QUICK = """
import torch
data = torch.utils.data.TensorDataset(torch.randn(320, 64))
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 512), torch.nn.Linear(512, 1)).to("cuda")
for (rows,) in torch.utils.data.DataLoader(data, batch_size=32):
    for repeat in range(5):
        net(rows.to("cuda")).sum().backward()
"""


def test_slow_data_without_workers():
    finding = found(SLOW, "PIP001")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(SLOW, "for rows in")
    assert finding.subjects[0].name == "Slow"
    assert "ms for each batch" in finding.message
    assert "num_workers=4" in finding.fix
    assert cost(finding)["share"] > 0.2


def test_with_workers_is_silent():
    quiet(SLOW.replace("batch_size=4)", "batch_size=4, num_workers=1)"), "PIP001")


def test_quick_data_is_silent():
    quiet(QUICK, "PIP001")


def test_on_the_host_is_silent():
    quiet(SLOW.replace('"cuda"', '"cpu"'), "PIP001", simulate=None)
