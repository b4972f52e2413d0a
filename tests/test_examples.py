"""The examples do what their headers say: what is wrong is named, and their corrected twins are left alone."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"

pytestmark = pytest.mark.slow

WRONG = [
    ("fashion_fcnn.py", (), 1, {"DEV001": "images", "SYN001": "loss"}),
    ("char_rnn.py", (), 1, {"DEV001": "hidden", "SYN002": "", "SYN003": ""}),
    ("false_colour.py", ("--variant", "evaluated-copy"), 0, {"CPY001": ""}),
    ("false_colour.py", ("--variant", "optimizer-copy"), 0, {"OPT001": ""}),
    ("false_colour.py", ("--variant", "replaced-parameters"), 0, {"OPT001": ""}),
]
"""Script, arguments, exit status, and the rules it breaks with a subject that must be named."""

CORRECTED = ["fashion_fcnn_fixed.py", "char_rnn_fixed.py", "false_colour_fixed.py"]


def run(folder: pathlib.Path, script: str, *arguments: str) -> tuple[int, list[dict], str]:
    """Exit status, findings, and what was printed."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "deviceguard", "run", "--simulate", "cuda", "--json", str(report)]
    done = subprocess.run(
        [*command, str(EXAMPLES / script), *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    return done.returncode, json.loads(report.read_text())["findings"], done.stdout + done.stderr


COSTS = [("fashion_fcnn.py", ["PIP003", "SYN001", "PIP002"]), ("char_rnn.py", ["SYN002", "SYN003", "SYN007", "PIP002"])]
"""Script, and what slows it down, worst first."""


@pytest.mark.parametrize(("script", "arguments", "status", "broken"), WRONG)
def test_what_is_wrong_is_named(tmp_path, script, arguments, status, broken):
    returned, findings, printed = run(tmp_path, script, *arguments)

    assert returned == status, printed
    for rule, name in broken.items():
        found = [finding for finding in findings if finding["rule"] == rule]
        assert found, (rule, [finding["rule"] for finding in findings])
        assert name in {subject["name"] for finding in found for subject in finding["subjects"]} or not name
        assert all(finding["file"].endswith(script) and finding["line"] and finding["fix"] for finding in found)


@pytest.mark.parametrize(("script", "order"), COSTS)
def test_causes_are_listed_by_cost(tmp_path, script, order):
    run(tmp_path, script)
    time = json.loads((tmp_path / "report.json").read_text())["time"]
    sites = time["sites"]

    assert list(dict.fromkeys(site["rule"] for site in sites)) == order
    assert [site["seconds"] for site in sites] == sorted((site["seconds"] for site in sites), reverse=True)
    assert time["estimated"]
    assert sum(time["parts"].values()) == pytest.approx(time["seconds_per_step"])


@pytest.mark.parametrize("script", CORRECTED)
def test_the_corrected_twin_is_left_alone(tmp_path, script):
    returned, findings, printed = run(tmp_path, script)

    assert returned == 0, printed
    assert [f["message"] for f in findings if f["severity"] != "advice"] == []


def test_every_example_is_run_here():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}

    assert scripts == {script for script, *_ in WRONG} | set(CORRECTED)
