"""The placement table, row by row, against what PyTorch's CUDA build does.

``cuda_truth.json`` was recorded from the CUDA build: for each call its result or the class and text of its error.
"""

import json
from pathlib import Path

import numpy as np  # noqa: F401 - used by the recorded calls
import pytest
import torch
import torch.nn.functional as F  # noqa: F401 - used by the recorded calls

from deviceguard.simulate import simulate

ROWS = json.loads((Path(__file__).parent / "cuda_truth.json").read_text())

#: Rows where the simulation differs, and why.
DIFFERENCES = {
    "from_dlpack": "torch.from_dlpack bypasses every hook and asks the real device",
    "inplace h0": "the shape is checked before the device there",
    "set_": "an empty tensor may take any storage here, so that loading works",
    "isinst2": "torch.FloatTensor is PyTorch's own type object",
    "dev0": "torch.device(0) is resolved in C++",
    "bilinear": "the host has a kernel of its own where the device multiplies matrices",
    "cos": "which of the two operands is named first differs",
    "sparse": "sparse kernels have their own wrappers",
    "sparsemm": "sparse kernels have their own wrappers",
}


def c(*size):
    return torch.zeros(size, device="cuda:0")


def h(*size):
    return torch.zeros(size)


def d1(*size):
    return torch.zeros(size, device="cuda:1")


def si(x, index, value):
    x[index] = value
    return x.device


def sg(p, gradient):
    p.grad = gradient


def sd(p, data):
    p.data = data
    return p.device


class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones(2)


def outcome(call):
    import copy  # noqa: F401
    import pickle  # noqa: F401

    try:
        value = repr(eval(call, globals(), locals()))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:330]}"
    return value[:150].replace("\n", " ")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_row(row):
    """Each recorded call has the recorded result, or the recorded error word by word."""
    expected = row["value"] if "value" in row else f"{row['error']}: {row['text']}"
    with simulate("cuda:2"):
        found = outcome(row["call"])

    if row["name"] in DIFFERENCES:
        assert found != expected, "this row agrees now: take it out of DIFFERENCES"
    else:
        assert expected == found
