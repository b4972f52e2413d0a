"""The JSON report: its schema, and that a reader never sees half of it."""

from __future__ import annotations

import json
import os
import stat

import pytest

import deviceguard
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.reports.json_report import as_dict, replace_text, write
from deviceguard.reports.report import Report


@pytest.fixture
def report():
    made = Report()
    subject = Subject("images", "input", "cpu", "float32", (1, 784), Site("train.py", 3, "load", "images = load()"))
    made.add(
        Finding(
            "DEV001",
            "input-device",
            Severity.ERROR,
            "images is on cpu",
            "images = images.to('cuda:0')",
            Site("train.py", 22, "fit", "net(images)", "tqdm"),
            (subject, Subject("net", "model")),
            count=3,
            first_step=1,
            last_step=4,
            cost=(("bytes", 12.0),),
        )
    )
    return made


def test_the_schema(report):
    assert as_dict(report) == {
        "schema": 1,
        "deviceguard": deviceguard.__version__,
        "torch": as_dict(report)["torch"],
        "steps": 0,
        "steps_watched": 0,
        "internal_errors": 0,
        "ranks": 1,
        "findings": [
            {
                "rule": "DEV001",
                "name": "input-device",
                "severity": "error",
                "message": "images is on cpu",
                "file": "train.py",
                "line": 22,
                "function": "fit",
                "source": "net(images)",
                "via": "tqdm",
                "subjects": [
                    {
                        "name": "images",
                        "kind": "input",
                        "device": "cpu",
                        "dtype": "float32",
                        "shape": [1, 784],
                        "made_at": {"file": "train.py", "line": 3, "function": "load", "source": "images = load()"},
                    },
                    {"name": "net", "kind": "model", "device": None, "dtype": None, "shape": None, "made_at": None},
                ],
                "fix": "images = images.to('cuda:0')",
                "count": 3,
                "first_step": 1,
                "last_step": 4,
                "key": "",
                "ranks": [],
                "cost": {"bytes": 12.0},
            }
        ],
        "repairs": [],
        "time": None,
    }
    assert report.to_dict() == as_dict(report)


def test_a_finding_without_a_site():
    made = Report()
    made.add(Finding("DEV001", "input-device", Severity.ERROR, "it", "fix"))
    (found,) = as_dict(made)["findings"]
    assert (found["file"], found["line"], found["source"]) == (None, None, None)


def test_writing(report, tmp_path):
    path = tmp_path / "below" / "out.json"
    write(report, path)
    assert json.loads(path.read_text()) == as_dict(report)
    assert os.listdir(path.parent) == ["out.json"]


def test_the_file_is_readable_as_others_are(report, tmp_path):
    write(report, tmp_path / "out.json")
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_failure_leaves_the_old_file_and_nothing_else(report, tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("old")

    def failing(*args, **kwargs):
        raise OSError("full")

    monkeypatch.setattr("pathlib.Path.replace", failing)
    with pytest.raises(OSError, match="full"):
        write(report, path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["out.json"])


def test_text_of_any_script_survives(tmp_path):
    made = Report()
    made.add(Finding("DEV001", "input-device", Severity.ERROR, "größe 模型 \udc80", "fix"))
    write(made, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text("utf-8"))["findings"][0]["message"] == "größe 模型 \udc80"


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
def test_numbers_json_does_not_know(tmp_path, cost):
    made = Report()
    made.add(Finding("DEV001", "input-device", Severity.ERROR, "it", "fix", cost=(("seconds", cost),)))
    write(made, tmp_path / "out.json")

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    found = json.loads((tmp_path / "out.json").read_text(), parse_constant=refuse)
    assert found["findings"][0]["cost"] == {"seconds": None}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_plain_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_text(pipe, "text\n")

    assert os.read(reading, 99) == b"text\n"
    assert pipe.is_fifo()
    os.close(reading)
