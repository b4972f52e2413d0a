"""Starts a new rule: its file, its test and its page.

    python scripts/new_rule.py OPT016 step-without-change

The rule is found by being in its folder; nothing else has to be told of it. Fill in the docstring, the handler and the
test, then run ``python scripts/generate_docs.py`` and ``python -m pytest tests -k opt016``.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

RULE = '''\
"""{code}: <one line on what is wrong>."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.rules.rule import Rule, on


class {cls}(Rule):
    """<What is wrong, in one sentence>.

    What it does:
        <What it compares, and when.>

    Why it hurts:
        <What the person sees, or does not see.>

    Example:
        net = nn.Linear(4, 2).to("cuda")

    Use instead:
        net = nn.Linear(4, 2).to("cuda")

    When it stays silent:
        <The nearest legitimate patterns.>

    Repair:
        <What migrate does, or "None: <why>.">

    References:
        https://<a thread in which somebody met this>
    """

    code: ClassVar[str] = "{code}"
    name: ClassVar[str] = "{name}"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "{version}"

    @on(OptimizerStepping)
    def before_step(self, event: OptimizerStepping) -> Iterator[Finding]:
        """<When it looks>."""
        optimizer = self.context.subjects.optimizer(event.optimizer)
        yield self.finding(
            f"{{optimizer.name}} <what it is, and what it should be>.",
            "<the one edit>",
            [optimizer],
        )
'''

TEST = '''\
"""{code} {name}: found in the buggy script, silent on the corrected and on the nearest legitimate one."""

from __future__ import annotations

from tests.scripts import line_of, loud, run_script

BUGGY = """
import torch
"""
CORRECTED = """
import torch
"""
LEGITIMATE = """
import torch
"""


def test_buggy_script_is_found():
    [finding] = run_script(BUGGY).of("{code}")

    assert finding.site.line == line_of(BUGGY, "<text of the line>")
    assert [subject.name for subject in finding.subjects] == ["<name>"]
    assert finding.fix == "<the one edit>"


def test_corrected_script_is_silent():
    assert loud(run_script(CORRECTED)) == []


def test_legitimate_script_is_silent():
    assert loud(run_script(LEGITIMATE)) == []
'''

FAMILY = '"""{family}: <what the family is about>."""\n'


def main() -> int:
    """Write the files; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", help="three letters and three digits, such as OPT016; codes are never used again")
    parser.add_argument("name", help="the bad pattern in one to four words, such as step-without-change")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the checkout to write into")
    given = parser.parse_args()
    if not re.fullmatch(r"[A-Z]{3}\d{3}", given.code) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,3}", given.name):
        parser.error("the code must look like OPT016 and the name like step-without-change")
    files = skeleton(given.code, given.name, given.root)
    taken = [path for path in files if path.exists() and path.name != "__init__.py"]
    taken += list((given.root / "deviceguard" / "rules").glob(f"*/{given.code.lower()}_*.py"))
    if taken:
        parser.error(f"there is {taken[0]} already")
    for path, text in files.items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(given.root))
    return 0


def skeleton(code: str, name: str, root: pathlib.Path) -> dict[pathlib.Path, str]:
    """The files of a new rule with their texts."""
    family = code[:3].lower()
    rules, tests = root / "deviceguard" / "rules" / family, root / "tests" / "rules" / family
    cls = "".join(word.capitalize() for word in name.split("-"))
    known = {"code": code, "name": name, "cls": cls, "version": _version(root)}
    return {
        rules / "__init__.py": FAMILY.format(family=code[:3]),
        rules / f"{code.lower()}_{name.replace('-', '_')}.py": RULE.format(**known),
        tests / f"test_{code.lower()}.py": TEST.format(**known),
    }


def _version(root: pathlib.Path) -> str:
    text = (root / "deviceguard" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found.group(1) if found else "0.1.0"


if __name__ == "__main__":
    sys.exit(main())
