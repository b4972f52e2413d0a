from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

SOFT_LABELS = """
targets = torch.tensor([[0, 1, 0], [1, 0, 0]], device="cuda")
targets[targets == 1] = 0.9
"""


def test_soft_labels_in_an_integer_tensor():
    finding = one(SOFT_LABELS, "DTY004")

    assert finding.severity.value == "error"
    assert finding.site.line == line(SOFT_LABELS, "= 0.9")
    assert names(finding) == ["targets"]
    assert finding.subjects[0].dtype == "int64"
    assert "0.9 is written into it" in finding.message
    assert finding.fix.startswith("make targets with dtype=torch.float32")


def test_corrected_is_silent():
    silent(SOFT_LABELS.replace("[[0, 1, 0], [1, 0, 0]]", "[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]"))


@pytest.mark.parametrize(
    "write",
    [
        "t[0] = torch.rand(3)",
        "t.copy_(torch.rand(2, 3))",
        "t.fill_(0.5)",
        "t.masked_fill_(t == 0, 0.5)",
        "u = torch.full_like(t, 0.5)",
    ],
)
def test_other_writes(write):
    assert "fraction is dropped" in one(f"t = torch.zeros(2, 3, dtype=torch.long)\n{write}\n", "DTY004").message


def test_refused_write():
    finding = one("t = torch.zeros(3, dtype=torch.long)\nrates = torch.rand(3)\nt += rates\n", "DTY004")

    assert names(finding) == ["t"]


def test_whole_numbers_images_and_written_casts_are_silent():
    silent("""
t = torch.zeros(2, 3, dtype=torch.long)
t[0] = 2.0
t[1] = torch.tensor([1.0, 2.0, 3.0])
image = torch.zeros(8, 8, dtype=torch.uint8)
image.copy_(torch.rand(8, 8) * 255)
image[0] = (torch.rand(8) * 255).to(torch.uint8)
mask = torch.zeros(3, dtype=torch.bool)
mask[0] = 1.0
quantised = torch.empty(4, dtype=torch.int8).copy_((torch.randn(4) * 40).round())
""")


def test_counters_among_averaged_buffers_are_silent():
    silent("""
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
for _ in range(3):
    net(torch.ones(4, 4) * torch.rand(4, 1))
    average.update_parameters(net)
""")
