"""The scaffold for a new rule writes what the catalogue accepts as a start, and overwrites nothing."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

from deviceguard.rules.page import page_of
from deviceguard.rules.registry import SECTIONS
from deviceguard.rules.rule import Rule

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def checkout(tmp_path) -> pathlib.Path:
    (tmp_path / "deviceguard").mkdir()
    shutil.copy(ROOT / "deviceguard" / "__init__.py", tmp_path / "deviceguard")
    return tmp_path


def new_rule(checkout: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "new_rule.py"), *arguments, "--root", str(checkout)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_writes_the_rule_its_test_and_a_new_family(checkout):
    done = new_rule(checkout, "ZZZ001", "some-bad-thing")

    assert done.stdout.splitlines() == [
        "deviceguard/rules/zzz/__init__.py",
        "deviceguard/rules/zzz/zzz001_some_bad_thing.py",
        "tests/rules/zzz/test_zzz001.py",
    ]


def test_the_rule_is_complete_but_for_its_words(checkout):
    new_rule(checkout, "ZZZ001", "some-bad-thing")
    namespace = {}
    exec((checkout / "deviceguard/rules/zzz/zzz001_some_bad_thing.py").read_text(), namespace)
    [rule] = [
        item for item in namespace.values() if isinstance(item, type) and issubclass(item, Rule) and item is not Rule
    ]

    assert (rule.code, rule.name) == ("ZZZ001", "some-bad-thing")
    assert tuple(page_of(rule).sections) == SECTIONS
    assert rule.handlers()


def test_the_test_compiles(checkout):
    new_rule(checkout, "ZZZ001", "some-bad-thing")

    compile((checkout / "tests/rules/zzz/test_zzz001.py").read_text(), "test_zzz001.py", "exec")


def test_a_code_is_never_used_twice(checkout):
    new_rule(checkout, "ZZZ001", "some-bad-thing")
    written = (checkout / "tests/rules/zzz/test_zzz001.py").stat().st_mtime_ns
    done = new_rule(checkout, "ZZZ001", "another-bad-thing")

    assert done.returncode == 2
    assert "already" in done.stderr
    assert (checkout / "tests/rules/zzz/test_zzz001.py").stat().st_mtime_ns == written


@pytest.mark.parametrize("arguments", [("zzz1", "some-thing"), ("ZZZ001", "Some Thing")])
def test_wrong_codes_and_names_are_refused(checkout, arguments):
    assert new_rule(checkout, *arguments).returncode == 2
