"""Finds the rules in their folders and answers questions about codes. Importing this imports no rule."""

from __future__ import annotations

import difflib
import functools
import importlib
import pathlib
import re
from collections.abc import Iterable

from deviceguard.errors import RuleDefinitionError, SettingsError
from deviceguard.rules.rule import Rule

FOLDER = pathlib.Path(__file__).parent
SECTIONS = (
    "What it does",
    "Why it hurts",
    "Example",
    "Use instead",
    "When it stays silent",
    "Repair",
    "References",
)
_FILE = re.compile(r"^(?P<family>[a-z]{3})(?P<number>\d{3})_(?P<name>[a-z0-9_]+)$")


@functools.cache
def rule_files() -> dict[str, str]:
    """Module path of each rule by its code, sorted by code; read from file names only."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*/*.py")):
        match = _FILE.match(path.stem)
        if match:
            code = f"{match['family']}{match['number']}".upper()
            if code in found:
                raise RuleDefinitionError(f"two files claim {code}: {found[code]} and {path}")
            found[code] = f"{__package__}.{path.parent.name}.{path.stem}"
    return dict(sorted(found.items()))


@functools.cache
def families() -> tuple[str, ...]:
    """The prefixes in use: ``("CPY", "DEV", ...)``."""
    return tuple(sorted({code[:3] for code in rule_files()}))


@functools.cache
def rule_class(code: str) -> type[Rule]:
    """The class of one rule.

    Raises:
        SettingsError: no rule has this code.
        RuleDefinitionError: its file does not meet the standard.
    """
    try:
        path = rule_files()[code]
    except KeyError:
        raise SettingsError(unknown_code(code)) from None
    module = importlib.import_module(path)
    classes = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Rule) and item.__module__ == path and "code" in vars(item)
    ]
    if len(classes) != 1:
        raise RuleDefinitionError(f"{path} must define exactly one rule, it defines {len(classes)}")
    _check_definition(classes[0], code, path)
    return classes[0]


def rule_classes(codes: Iterable[str] | None = None) -> list[type[Rule]]:
    """The classes of the given codes (default: of all), sorted by code."""
    return [rule_class(code) for code in (rule_files() if codes is None else sorted(codes))]


def expand(selectors: Iterable[str]) -> set[str]:
    """Codes meant by selectors such as ``DEV``, ``SYN001`` or ``ALL``.

    Raises:
        SettingsError: a selector matches no rule.
    """
    codes: set[str] = set()
    for selector in selectors:
        wanted = selector.strip().upper()
        matching = set(rule_files()) if wanted == "ALL" else {code for code in rule_files() if code.startswith(wanted)}
        if not wanted or not matching or not (wanted in ("ALL", *families()) or wanted in rule_files()):
            raise SettingsError(unknown_code(selector))
        codes |= matching
    return codes


def unknown_code(code: str) -> str:
    """The text for a code or family that does not exist, with the closest match."""
    known = [*rule_files(), *families()]
    close = difflib.get_close_matches(code.strip().upper(), known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no rule or family {code!r}.{hint} 'deviceguard rules' lists them."


def _check_definition(cls: type[Rule], code: str, path: str) -> None:
    if cls.code != code or cls.name.replace("-", "_") != path.rsplit(".", 1)[1].split("_", 1)[1]:
        raise RuleDefinitionError(f"{path}: file name, code {cls.code!r} and name {cls.name!r} must agree")
    if not cls.handlers():
        raise RuleDefinitionError(f"{path}: a rule must handle at least one event")
    missing = [section for section in SECTIONS if f"{section}:\n" not in (cls.__doc__ or "")]
    if missing:
        raise RuleDefinitionError(f"{path}: the page lacks {', '.join(missing)}")
