from __future__ import annotations

from tests.rules.loops import at, found, quiet, training

EVERY_STEP = training('shifted = x - mean.to("cuda")', before="mean = torch.randn(8)", steps=12)
EPOCHS = """
import torch
data = torch.randn(64, 8)
net = torch.nn.Linear(8, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(3):
    for first in range(0, 64, 8):
        batch = data[first : first + 8].to("cuda")
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
"""


def test_same_tensor_at_every_step():
    finding = found(EVERY_STEP, "SYN009")

    assert finding.site.line == at(EVERY_STEP, 'mean.to("cuda")')
    assert finding.subjects[0].name == "mean"
    assert "mean (on the host) is uploaded to cuda:0 again without having changed" in finding.message
    assert finding.fix.startswith("upload it once before the loop")


def test_same_data_in_every_epoch():
    finding = found(EPOCHS, "SYN009")

    assert finding.site.line == at(EPOCHS, "batch = data")
    assert "data" in finding.subjects[0].name
    assert "move all of it to 'cuda:0' once" in finding.fix


def test_moved_once_is_silent():
    quiet(EPOCHS.replace("torch.randn(64, 8)", 'torch.randn(64, 8).to("cuda")').replace('].to("cuda")', "]"), "SYN009")


def test_one_epoch_is_silent():
    quiet(EPOCHS.replace("range(3)", "range(1)"), "SYN009")


def test_memory_that_is_written_to_is_silent():
    quiet(training('mean.add_(1.0); shifted = x - mean.to("cuda")', before="mean = torch.randn(8)", steps=12), "SYN009")


def test_array_that_is_filled_anew_is_silent():
    before = "import numpy as np\nseen = np.zeros(8, dtype=np.float32)\nmean = torch.from_numpy(seen)"

    quiet(training('seen[:] = step; shifted = x - mean.to("cuda")', before=before, steps=12), "SYN009")


def test_replay_buffer_is_silent():
    before = "buffer = torch.randn(100, 8)"

    quiet(training('batch = buffer[torch.randint(0, 100, (16,))].to("cuda")', before=before, steps=12), "SYN009")


def test_data_larger_than_the_device_is_silent(monkeypatch):
    from deviceguard.rules.syn import syn009_repeated_upload

    monkeypatch.setattr(syn009_repeated_upload, "total_memory", lambda device: 1000)

    quiet(EPOCHS, "SYN009")
