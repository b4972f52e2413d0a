"""Holds all rules to the standard of the catalogue; parametrised over whatever is in the folder."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import re
import sys

import pytest

from deviceguard.backends.simulated import SimulatedBackend
from deviceguard.events import Event
from deviceguard.findings import Severity
from deviceguard.rules import registry
from deviceguard.rules.page import page_of
from deviceguard.rules.registry import SECTIONS, families, rule_class, rule_files
from tests.scripts import loud, run_script

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "rules"
CODES = tuple(rule_files())
REAL_FAMILIES = frozenset({"XLA"})
"""Families whose examples run on the real device where there is one, and else on a simulated one if asked to."""
SIMULATED_CODES = {"DEV010": "cuda:2"}

each_rule = pytest.mark.parametrize("code", CODES)
each_example = pytest.mark.parametrize(
    "code", [pytest.param(code, marks=pytest.mark.xla) if code[:3] in REAL_FAMILIES else code for code in CODES]
)


def test_there_are_rules():
    assert "DEV001" in CODES


def test_codes_are_sorted_and_well_formed():
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"[A-Z]{3}\d{3}", code) for code in CODES)


@each_rule
def test_file_lies_in_the_folder_of_its_family(code):
    assert rule_files()[code].split(".")[-2] == code[:3].lower()


@each_rule
def test_declares_everything(code):
    rule = rule_class(code)

    assert rule.code == code
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,3}", rule.name), rule.name
    assert isinstance(rule.severity, Severity)
    assert re.fullmatch(r"\d+\.\d+\.\d+", rule.since)


def test_names_are_unique():
    names = [rule_class(code).name for code in CODES]

    assert len(names) == len(set(names))


@each_rule
def test_page_has_all_sections_in_order(code):
    page = page_of(rule_class(code))

    assert tuple(page.sections) == SECTIONS
    assert all(text.strip() for text in page.sections.values())
    assert page.title.endswith(".")
    assert "\n\n" not in inspect.cleandoc(page.title)


@each_rule
def test_page_refers_to_real_reports(code):
    assert page_of(rule_class(code)).references


@each_rule
def test_has_a_test_file(code):
    module = rule_files()[code].rsplit(".", 1)[1]
    number = module.split("_", 1)[0]
    found = list((TESTS / code[:3].lower()).glob(f"test_{number}*.py"))

    assert found, f"no tests/rules/{code[:3].lower()}/test_{number}.py"


@each_rule
def test_imports_no_torch_at_module_level(code):
    source = pathlib.Path(importlib.util.find_spec(rule_files()[code]).origin).read_text()

    outside_type_checking = re.sub(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", source, flags=re.MULTILINE)
    assert not re.search(r"^(?:import|from) torch\b", outside_type_checking, re.MULTILINE)


@each_rule
def test_handlers_take_events_and_are_documented(code):
    for kind, names in rule_class(code).handlers().items():
        assert issubclass(kind, Event)
        assert all(inspect.getdoc(getattr(rule_class(code), name)) for name in names)


@each_example
def test_example_is_flagged_by_this_rule(code, monkeypatch):
    monkeypatch.setattr(SimulatedBackend, "has_figures", True)  # stands in for hardware that has a load to read
    found = run_script(page_of(rule_class(code)).example, _device(code), may_raise=Exception)

    assert code in {finding.rule for finding in found.findings}, [str(f.message) for f in found.findings]


@each_example
def test_use_instead_is_silent(code):
    assert loud(run_script(page_of(rule_class(code)).use_instead, _device(code))) == []


def test_pages_are_current():
    assert _generator().stale(ROOT / "docs") == [], "run python scripts/generate_docs.py"


def test_check_of_pages_can_fail(tmp_path):
    generator = _generator()
    generator.write(tmp_path)
    (tmp_path / "rules" / "DEV001.md").write_text("old")
    (tmp_path / "rules" / "ZZZ999.md").write_text("of a rule that is gone")
    (tmp_path / "settings.md").unlink()

    assert [path.name for path in generator.stale(tmp_path)] == ["DEV001.md", "ZZZ999.md", "settings.md"]
    generator.write(tmp_path)
    assert generator.stale(tmp_path) == []


def test_every_family_has_a_title():
    generator = _generator()

    assert all(len(generator.family_title(family)) > 3 for family in families())


def test_every_test_file_of_a_rule_has_a_rule():
    numbers = {path.rsplit(".", 1)[1].split("_", 1)[0] for path in rule_files().values()}
    files = [path for path in TESTS.glob("*/test_*.py") if re.match(r"test_[a-z]{3}\d{3}", path.name)]

    assert [path.name for path in files if path.stem.split("_")[1] not in numbers] == []


def test_sections_are_those_of_the_standard():
    assert registry.SECTIONS == (
        "What it does",
        "Why it hurts",
        "Example",
        "Use instead",
        "When it stays silent",
        "Repair",
        "References",
    )


def _device(code: str) -> str | None:
    if code[:3] in REAL_FAMILIES:
        return None if importlib.util.find_spec("torch_xla") is not None else "xla"
    return SIMULATED_CODES.get(code, "cuda")


def _generator():
    name = "generate_docs"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "generate_docs.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
