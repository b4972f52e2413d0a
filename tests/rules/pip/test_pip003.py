from __future__ import annotations

from tests.rules.loops import at, cost, found, quiet

ONE_BY_ONE = """
import torch
data = torch.utils.data.TensorDataset(torch.randn({rows}, {size}), torch.zeros({rows}, dtype=torch.long))
net = torch.nn.Linear({size}, 3).to("cuda")
for images, labels in torch.utils.data.DataLoader(data, batch_size={batch}):
    loss = torch.nn.functional.cross_entropy(net(images.to("cuda")), labels.to("cuda"))
    loss.backward()
"""
BUGGY = ONE_BY_ONE.format(rows=20, size=64, batch=1)


def test_one_small_sample_at_a_time():
    finding = found(BUGGY, "PIP003")

    assert finding.severity.value == "warning"
    assert finding.site.line == at(BUGGY, "for images")
    assert finding.subjects[0].name == "TensorDataset"
    assert "batches of 1 (65 numbers)" in finding.message
    assert "batch_size=64" in finding.fix
    assert cost(finding)["rows"] == 1


def test_batches_are_silent():
    quiet(ONE_BY_ONE.format(rows=200, size=64, batch=8), "PIP003")


def test_large_single_samples_are_silent():
    quiet(ONE_BY_ONE.format(rows=14, size=40_000, batch=1), "PIP003")


def test_evaluation_is_silent():
    quiet(BUGGY.replace("    loss.backward()\n", ""), "PIP003")


def test_few_steps_are_silent():
    quiet(ONE_BY_ONE.format(rows=6, size=64, batch=1), "PIP003")
