"""Whole programs on a simulated GPU: the very result of a CPU run, and nothing to report.

Each program of this folder takes its device from ``DEVICE`` and prints what it computed in full precision.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs

HERE = Path(__file__).parent


def run(command, device, **more):
    env = {
        **os.environ,
        "DEVICE": device,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **more,
    }
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def loud(report):
    """What the guard has to say beyond advice."""
    findings = json.loads(report.read_text())["findings"]
    return [(finding["rule"], finding["message"]) for finding in findings if finding["severity"] != "advice"]


@pytest.mark.parametrize("name", ["lightning_trainer", "transformers_trainer", "accelerate_loop"])
def test_program(name, tmp_path):
    """The same numbers to the last bit, on the device that was asked for, without an alarm."""
    if find_spec(name.partition("_")[0]) is None:
        pytest.skip(f"{name.partition('_')[0]} is not installed; tox -e programs installs it")
    script, report = str(HERE / f"{name}.py"), tmp_path / "report.json"
    plain = run([script], "cpu")

    guard = ["-m", "deviceguard", "run", "--policy", "warn", "--simulate", "cuda", "--json", str(report)]
    simulated = run([*guard, script], "cuda")

    assert simulated.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]
    assert loud(report) == []


def test_torchrun():
    """Two processes with a simulated device each, joined by gloo."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "data_parallel.py")]
    plain = run(launch, "cpu")

    simulated = run(launch, "cuda", DEVICEGUARD_SIMULATE="cuda:2")

    assert simulated.stdout == plain.stdout
