"""The simulated XLA device against the real one: the rows of the placement table that name no CUDA API."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulate import two_devices

pytestmark = pytest.mark.xla

BUILD = "that torch_xla is on a CPU build of PyTorch, or on none for this hardware, is not imitated"
FUNCTIONAL = "torch_xla's functional tensors, which are not imitated, come out or are refused"
#: Rows where the simulation differs, and why.
DIFFERENCES = {
    "GRU device hidden": "the words of torch_xla's shape inference, which is not imitated",
    "GRU host weights": "the words of torch_xla's shape inference, which is not imitated",
    "allclose": "torch_xla takes the operands of isclose and refuses those of allclose",
    "bce": FUNCTIONAL,
    "block_diag": "the words of PyTorch 2.9; the simulation has those of the newest",
    "clamp": "torch_xla's own lowering fails; a host bound is not meant to be given",
    "conv": FUNCTIONAL,
    "convt": FUNCTIONAL,
    "dlpackdev": BUILD,
    "emptypin": BUILD,
    "from_dlpack": BUILD,
    "inplace h0": "the shape is written in another way",
    "isinst2": "torch.FloatTensor is PyTorch's own type object",
    "linspace": FUNCTIONAL,
    "out2": "torch_xla takes a host result of mm, and not of other operations",
    "pack": "what the real one complains about is the number of lengths in this row",
    "pin": BUILD,
    "pin c": "the legacy name of the tensor type",
    "set_": FUNCTIONAL,
    "setmask": FUNCTIONAL,
    "sparse": "sparse tensors do not exist there",
    "to0": BUILD,
    "zeros0": BUILD,
}


def ask(folder, spec=""):
    out = folder / f"{spec or 'real'}.json"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, two_devices.__file__, "rows:xla", str(out), spec]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


def test_same_as_the_real_device(tmp_path):
    """Refused or not, class and text of the error, and the result, but for a named list."""
    real, simulated = ask(tmp_path), ask(tmp_path, "xla")

    assert real.keys() == simulated.keys()
    differing = {name: (real[name], simulated[name]) for name in real if real[name] != simulated[name]}
    print(f"{len(real)} calls, {len(real) - len(differing)} agree")
    assert {name: pair for name, pair in differing.items() if name not in DIFFERENCES} == {}
