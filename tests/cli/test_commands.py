"""``rules``, ``explain``, ``--version`` and what a person reads who mistypes."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import deviceguard
from deviceguard.cli.explain import meant, names_of_rules, page_text
from deviceguard.cli.main import main
from deviceguard.errors import SettingsError
from deviceguard.rules.registry import families, rule_class, rule_classes, rule_files


def said(capsys, *arguments, status=None):
    """What the command prints: (stdout, stderr)."""
    if status is None:
        main(arguments)
    else:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == status
    return tuple(capsys.readouterr())


class TestRules:
    def test_has_a_line_for_each_rule(self, capsys):
        out, _ = said(capsys, "rules")
        lines = out.splitlines()
        assert [line.split()[0] for line in lines[: len(rule_files())]] == list(rule_files())
        assert re.match(
            r"DEV001  input-device +error +A module is called with", lines[list(rule_files()).index("DEV001")]
        )

    def test_wraps_on_a_narrow_terminal(self):
        from deviceguard.cli.catalogue import listing

        lines = list(listing(rule_classes(), 80))
        assert len(lines) > len(rule_files())
        assert max(map(len, lines)) <= 90

    def test_as_json(self, capsys):
        found = json.loads(said(capsys, "rules", "--json")[0])
        assert [rule["code"] for rule in found] == list(rule_files())
        (rule,) = (rule for rule in found if rule["code"] == "DEV001")
        assert (rule["name"], rule["severity"]) == ("input-device", "error")
        assert "torch.nn.Linear" in rule["sections"]["Example"]


class TestExplain:
    @pytest.mark.parametrize("word", ["DEV001", "dev001", "input-device", "Input_Device", " DEV001 "])
    def test_takes_a_code_or_a_name(self, capsys, word):
        out, _ = said(capsys, "explain", word)
        assert out.startswith("DEV001 input-device (error, since ")
        positions = [out.index(f"\n{name}\n") for name in ("What it does", "Example", "Use instead", "References")]
        assert positions == sorted(positions)

    def test_takes_a_family(self, capsys):
        out, _ = said(capsys, "explain", "dev")
        assert [code for code in rule_files() if f"\n{code} " in f"\n{out}"] == meant("DEV")

    @pytest.mark.parametrize(
        ("word", "closest"),
        [
            ("DVE001", "DEV001"),
            ("stale-parameter", "stale-parameters"),
            ("inputdevice", "input-device"),
            ("DVE", "DEV"),
        ],
    )
    def test_names_the_closest_for_an_unknown_one(self, capsys, word, closest):
        out, err = said(capsys, "explain", word, status=2)
        assert out == ""
        hint = f"There is no rule or family {word!r}. Did you mean {closest}?"
        assert err == f"deviceguard: {hint} 'deviceguard rules' lists them.\n"

    def test_says_so_where_nothing_is_close(self):
        with pytest.raises(SettingsError, match="'zzzzzz'. 'deviceguard rules' lists them"):
            meant("zzzzzz")

    @pytest.mark.parametrize("word", ["", "D", "DEV0"])
    def test_a_beginning_is_not_enough(self, word):
        with pytest.raises(SettingsError):
            meant(word)

    @pytest.mark.parametrize("code", rule_files())
    def test_every_page_reads_well(self, code):
        text = page_text(rule_class(code), 80)
        assert "``" not in text
        assert ":class:" not in text
        prose = text.partition("\nExample\n")[0].splitlines()[2:]
        assert max(map(len, prose)) <= 80

    def test_names_come_from_the_files_and_agree_with_the_classes(self):
        assert names_of_rules() == {rule.code: rule.name for rule in rule_classes()}
        assert set(families()) == {code[:3] for code in rule_files()}


@pytest.mark.parametrize(
    "command", [["rules"], ["rules", "--json"], ["explain", "DEV"], ["--version"], ["run", "--help"]]
)
def test_needs_no_torch_at_all(command):
    code = f"import sys; sys.modules['torch'] = None; from deviceguard.cli.main import main; main({command!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_version(capsys):
    assert said(capsys, "--version", status=0)[0] == f"deviceguard {deviceguard.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], "Missing argument"),
        (["run", "--selct", "DEV", "train.py"], "--select"),
        (["rn", "train.py"], "run"),
        (["run", "--simulate", "gpu", "train.py"], "one of cuda, xla"),
        (["run", "--policy", "strikt", "train.py"], "Did you mean 'strict'?"),
        (["run", "--ignore", "SYN0001", "train.py"], "Did you mean SYN001?"),
    ],
)
def test_mistakes_end_with_status_2_before_anything_runs(capsys, arguments, expected):
    out, err = said(capsys, *arguments, status=2)
    assert out == ""
    assert expected in err


def test_help_is_shown_without_a_command(capsys):
    out, err = said(capsys, status=2)
    assert "Commands:" in out + err
