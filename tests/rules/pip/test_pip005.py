from __future__ import annotations

import warnings

import pytest

from tests.rules.loops import at, found, quiet

LIST = """
import numpy as np
import torch
rows = [np.zeros(8, dtype=np.float32) for _ in range(16)]
net = torch.nn.Linear(8, 1).to("cuda")
for step in range(3):
    net(torch.tensor(rows).to("cuda")).sum().backward()
"""


@pytest.fixture(autouse=True)
def without_the_warning_of_pytorch():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Creating a tensor from a list")
        yield


def test_list_of_arrays():
    finding = found(LIST, "PIP005")

    assert finding.site.line == at(LIST, "torch.tensor(rows)")
    assert finding.subjects[0].name == "rows"
    assert "reads rows, a list of 16 NumPy arrays, number by number" in finding.message
    assert finding.fix == "torch.from_numpy(np.stack(rows))"
    assert finding.count == 3


@pytest.mark.parametrize("better", ["torch.from_numpy(np.stack(rows))", "torch.tensor(np.array(rows))"])
def test_stacked_is_silent(better):
    quiet(LIST.replace("torch.tensor(rows)", better), "PIP005")


def test_once_is_silent():
    quiet(LIST.replace("range(3)", "range(1)"), "PIP005")


def test_numbers_are_silent():
    quiet(LIST.replace("torch.tensor(rows)", "torch.tensor([[float(i) for i in range(8)]])"), "PIP005")
