from __future__ import annotations

from tests.rules.loops import at, found, quiet

IN_WORKER = """
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        row = torch.full((4,), float(index))
        return row.to("cuda")

net = torch.nn.Linear(4, 1).to("cuda")
for rows in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
    net(rows.to("cuda")).sum().backward()
"""


def test_device_tensor_in_a_forked_worker():
    finding = found(IN_WORKER, "PIP004", may_raise=RuntimeError)

    assert finding.severity.value == "error"
    assert finding.site.line == at(IN_WORKER, 'return row.to("cuda")')
    assert finding.subjects[0].name == "Rows"
    assert "Rows.__getitem__ makes a device tensor inside a worker process" in finding.message
    assert "return host tensors" in finding.fix


def test_host_tensors_are_silent():
    quiet(IN_WORKER.replace('return row.to("cuda")', "return row"), "PIP004")


def test_without_workers_is_silent():
    quiet(IN_WORKER.replace('num_workers=1, multiprocessing_context="fork"', "num_workers=0"), "PIP004")


def test_other_failures_of_a_worker_are_none_of_it():
    from tests.scripts import run_script

    source = IN_WORKER.replace('return row.to("cuda")', "raise KeyError(index)")
    assert run_script(source, raises=KeyError).of("PIP004") == []
