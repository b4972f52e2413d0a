"""What we say waits, compared with what PyTorch's CUDA build reports, form by form.

It needs a CUDA device, or an interpreter with PyTorch's CUDA build over a runtime that does nothing, which the
environment variable ``TEST_CUDA_STUB`` names.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from tests.sources.sync_forms import READS, SET_UP, SILENT, UPLOADS

STUB = os.environ.get("TEST_CUDA_STUB")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not STUB and not torch.cuda.is_available(),
        reason="no CUDA device, and TEST_CUDA_STUB names no interpreter with PyTorch's CUDA build",
    ),
]
ENDLESS = ("str", "percent s", "trunc_normal_")
"""Forms that run without end, or out of memory, on numbers that no kernel has computed."""
UNREPORTED = {
    "copy_ to pageable memory": "the driver waits, PyTorch does not say so",
    "to without waiting": "the driver waits, PyTorch does not say so",
    "pinned with gaps": "the driver waits, PyTorch does not say so",
    "coalesce": "waits inside thrust",
    "sparse mm": "waits inside thrust",
    "SparseAdam": "waits inside thrust",
    "unique by dim": "waits inside thrust",
    "host mask": "counted by the host; its index goes up from pinned memory",
    "lu_unpack": "no longer",
    "combinations": "not from 2.14 on",
    "istft": "not from 2.14 on",
    "normal with a tensor": "not from 2.14 on",
}
"""Forms of which PyTorch says nothing although we do."""
ADDED = {
    "AveragedModel": "one more wait, inside the optimizer's own averaging",
    "graph break": "one more wait, while the compiler compiles",
    "leaf on the host": "one more wait, of the copy in backward",
    "graph that crosses to the host": "one more wait, of the copy in backward",
}
"""Forms that wait where only PyTorch's report sees it, beside the wait that we see."""


@pytest.fixture(scope="module")
def outcomes():
    script = pathlib.Path(__file__).with_name("real_cuda_syncs.py")
    done = subprocess.run(
        [STUB or sys.executable, str(script), *(ENDLESS if STUB else ())],
        capture_output=True,
        text=True,
        timeout=540,
        env={**os.environ, "FAKECUDA_D2H1": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_we_say_waits_is_reported(outcomes):
    unknown = {name for name in (*READS, *UPLOADS) if name in outcomes and not outcomes[name][0]}

    assert unknown - UNREPORTED.keys() - _failed(outcomes) == set()


def test_what_is_reported_is_seen_once(outcomes):
    unseen = {name for name in (*READS, *UPLOADS) if name in outcomes and outcomes[name][0] and not outcomes[name][1]}
    twice = {name for name in (*READS, *UPLOADS) if name in outcomes and outcomes[name][3]}

    assert unseen - _failed(outcomes) == set()
    assert twice - ADDED.keys() - _failed(outcomes) == set()


def test_what_we_call_harmless_is_not_reported(outcomes):
    wrong = {name: outcomes[name] for name in SILENT if outcomes[name][0] and name not in SET_UP}

    assert wrong == {}


def _failed(outcomes) -> set[str]:
    """Forms that ended with an error, as solvers do whose numbers no kernel has computed."""
    return {name for name, (_, _, error, _) in outcomes.items() if error}
