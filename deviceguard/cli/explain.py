"""``deviceguard explain``: the page of a rule, or of all rules of a family."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap

import click

from deviceguard.errors import SettingsError
from deviceguard.rules.page import EXAMPLE_SECTIONS, page_of
from deviceguard.rules.registry import families, rule_class, rule_files
from deviceguard.rules.rule import Rule

_WIDEST = 100
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


@click.command(short_help="Explain one rule or a family.")
@click.argument("rule", metavar="RULE")
def explain(rule: str) -> None:
    """Explain a rule: what it catches, why it hurts, an example, the corrected example.

    RULE is a code (OPT001), a name (stale-parameters) or a family (OPT).
    """
    width = max(40, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
    click.echo("\n\n".join(page_text(rule_class(code), width) for code in meant(rule)))


def meant(text: str) -> list[str]:
    """The codes a person means.

    Args:
        text: a code, the name of a rule, or a family, in upper or lower case.

    Raises:
        SettingsError: none of these, with the closest match.
    """
    wanted = text.strip().upper().replace("_", "-")
    names = names_of_rules()
    found = [code for code, name in names.items() if wanted in (code, name.upper())]
    if wanted in families():
        found = [code for code in names if code.startswith(wanted)]
    if not found:
        raise SettingsError(f"There is no rule or family {text!r}.{_closest(wanted)} 'deviceguard rules' lists them.")
    return found


def names_of_rules() -> dict[str, str]:
    """The name of each rule by its code, from the file names; loads no rule."""
    stems = {code: path.rsplit(".", 1)[1] for code, path in rule_files().items()}
    return {code: stem.split("_", 1)[1].replace("_", "-") for code, stem in stems.items()}


def _closest(wanted: str) -> str:
    known = {name.upper(): name for name in (*rule_files(), *families(), *names_of_rules().values())}
    close = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    return f" Did you mean {known[close[0]]}?" if close else ""


def page_text(rule: type[Rule], width: int = _WIDEST) -> str:
    """The page of a rule as plain text.

    Args:
        rule: the class of the rule.
        width: columns to wrap prose at; code and addresses are not wrapped.
    """
    page = page_of(rule)
    head = f"{rule.code} {rule.name} ({rule.severity.value}, since {rule.since})"
    lines = [head, "=" * len(head), *_prose(page.title, width)]
    for name, text in page.sections.items():
        is_literal = name in (*EXAMPLE_SECTIONS, "References")
        body = text.splitlines() if is_literal else _prose(text, width - 4)
        lines += ["", name, *(f"    {line}".rstrip() for line in body)]
    return "\n".join(lines)


def _prose(text: str, width: int) -> list[str]:
    plain = _ROLE.sub(r"`\1`", text).replace("``", "`")
    lines: list[str] = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", plain)):
        lines += [""] * bool(number) + textwrap.wrap(" ".join(paragraph.split()), width, break_long_words=False)
    return lines
