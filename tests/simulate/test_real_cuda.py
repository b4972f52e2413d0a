"""The simulated CUDA device against a real one, live: the placement table, and PyTorch's catalogue over two devices.

Real is the GPU of this machine or, on any machine, PyTorch's CUDA build over a runtime whose kernels do nothing: the
environment variable ``TEST_CUDA_STUB`` names the Python interpreter that has it, which sees as many devices as
``FAKECUDA_NDEV`` says. Dispatch, refusals and their texts are PyTorch's own there; no number is. The simulation runs in
the same interpreter with no device visible, so that both sides are one version of PyTorch.
"""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.simulate import two_devices

STUB = os.environ.get("TEST_CUDA_STUB")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not STUB and not torch.cuda.is_available(),
        reason="no CUDA device, and TEST_CUDA_STUB names no interpreter with PyTorch's CUDA build",
    ),
]
ROOT = Path(__file__).parents[2]
#: Where kernels do nothing these end the process: cuDNN's plans are empty.
END_THE_PROCESS = [f"nn.functional.conv{transposed}{n}d" for transposed in ("", "_transpose") for n in (1, 2, 3)]
#: What an error says that comes from a number which no kernel has computed, or from a library that is a stub.
NO_KERNELS = re.compile(
    "nvml|NVRTC|INTERNAL ASSERT|illegal value|overflow|out of memory|can't allocate|cuDNN version|out of bounds|"
    "negative|CUDA error|cannot be represented|ill-conditioned|is singular|invalid argument"
)
OTHER_WORDS = "refused there too, in the words of another kernel"
#: Operations of the catalogue that differ with operands on two devices or, ``out``, with a result on another, and why.
DIFFERENCES = {
    "diff out": OTHER_WORDS,
    "linalg.vecdot out": OTHER_WORDS,
    "linspace.tensor_overload out": "refused there; here the result is where out is",
    "logical_and out": OTHER_WORDS,
    "logical_or out": OTHER_WORDS,
    "logical_xor out": OTHER_WORDS,
    "logspace.tensor_overload out": "refused there; here the result is where out is",
    "matmul out": OTHER_WORDS,
    "mv out": OTHER_WORDS,
    "nn.functional.linear out": OTHER_WORDS,
    "sparse.sampled_addmm out": OTHER_WORDS,
    "stack out": OTHER_WORDS,
    "take_along_dim out": OTHER_WORDS,
    "_segment_reduce.lengths": "a private operation with a check of its own",
    "_segment_reduce.offsets": "a private operation with a check of its own",
    "_unsafe_masked_index": "private, made by the compiler only",
    "_unsafe_masked_index_put_accumulate": "private, made by the compiler only",
    "jiterator_2inputs_2outputs": "compiled by the CUDA compiler, which the simulation has not",
    "jiterator_4inputs_with_extra_args": "compiled by the CUDA compiler, which the simulation has not",
    "jiterator_binary": "compiled by the CUDA compiler, which the simulation has not",
    "jiterator_binary_return_by_ref": "compiled by the CUDA compiler, which the simulation has not",
    "linalg.pinv": "tolerances on another device are accepted there where no kernel compares them",
    "native_batch_norm": "called directly, it does not choose cuDNN as F.batch_norm does: another kernel is named",
    "nn.functional.bilinear": "the host has a kernel of its own where the device multiplies matrices",
    "nn.functional.cosine_similarity": "which of the two operands is named first differs",
    "nn.functional.grid_sample": "cuDNN's kernel is the one named when two devices are involved",
    "nn.functional.linear_cross_entropy.chunked": "a Python kernel whose first operation differs by device",
    "nn.functional.linear_cross_entropy.chunked_none": "a Python kernel whose first operation differs by device",
    "sparse.mm.reduce": "exists on the host only, which is not simulated",
    "sparse.sampled_addmm": "sparse kernels have their own wrappers",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "private, and the host's by its name",
}


def ask(what, tmp_path_factory, spec=""):
    """What became of the calls, real for an empty ``spec``."""
    out = tmp_path_factory.mktemp("outcomes") / "outcomes.json"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if STUB:  # what no kernel has written is zero, not what was there before
        env |= {"FAKECUDA_NDEV": "2", "MALLOC_PERTURB_": "255", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        env |= {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if spec:
        env |= {"CUDA_VISIBLE_DEVICES": "", "FAKECUDA_NDEV": "0"}  # nothing but what is simulated
    left_out = END_THE_PROCESS if STUB else ()

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # sizes may be uninitialised memory

    done = subprocess.run(
        [STUB or sys.executable, two_devices.__file__, what, str(out), spec, *left_out],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        preexec_fn=limit if STUB else None,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module", params=["rows", "sweep"])
def outcomes(request, tmp_path_factory):
    """The kind of calls; what became of them on the real device, and on the simulated one."""
    count = 2 if STUB else torch.cuda.device_count()
    simulated = ask(request.param, tmp_path_factory, f"cuda:{count}")
    return request.param, ask(request.param, tmp_path_factory), simulated


def operation(key):
    """The operation of a call of the sweep, and whether its ``out`` is meant; the name of a row."""
    if "rest on" not in key and "all on" not in key:
        return key
    return key.partition(" ")[0] + (" out" if ": out on" in key else "")


def test_same_as_a_real_device(outcomes):
    """Refused or not, class and text of the error, device of the results; what differs is a named list."""
    kind, real, simulated = outcomes
    named = two_devices.DIFFERENCES if kind == "rows" else DIFFERENCES

    assert real.keys() == simulated.keys()
    told = {key for key in real if not (STUB and NO_KERNELS.search(real[key]))}
    differing = {key for key in told if real[key] != simulated[key]}
    unexpected = {key: (real[key], simulated[key]) for key in differing if operation(key) not in named}
    print(f"{kind}: {len(real)} calls, {len(told)} can be told, {len(told - differing)} agree")
    assert unexpected == {}
    if kind == "sweep":
        assert {operation(key) for key in differing} == named.keys(), "take what agrees now out of DIFFERENCES"


def test_recorded_rows_are_still_true(outcomes):
    """What the default test-suite compares with is what the real device says."""
    kind, real, _ = outcomes
    if kind == "rows" and STUB:
        for row in two_devices.rows():
            assert two_devices.expected_of(row) == real[row["name"]]
