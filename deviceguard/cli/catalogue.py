"""``deviceguard rules``: the catalogue."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from deviceguard.rules.page import page_of
from deviceguard.rules.registry import rule_classes
from deviceguard.rules.rule import Rule


@click.command(short_help="List the rules.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the whole pages.")
def rules(as_json: bool) -> None:
    """List the rules: code, name, severity and what each catches."""
    found = rule_classes()
    if as_json:
        click.echo(json.dumps([_plain_data(rule) for rule in found], indent=1))
        return
    for line in listing(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        click.echo(line)
    click.echo("\n'deviceguard explain CODE' has the page of a rule.")


def listing(found: list[type[Rule]], columns: int | None) -> Iterator[str]:
    """The rules as a table.

    Args:
        found: what to list.
        columns: width to wrap at; None for one line a rule, which other programs can read.
    """
    width = max((len(rule.name) for rule in found), default=0)
    for rule in found:
        head = f"{rule.code}  {rule.name:<{width}}  {rule.severity.value:<7}  "
        title = page_of(rule).title.replace("``", "`")
        room = max(30, columns - len(head)) if columns is not None else len(title)
        first, *more = textwrap.wrap(title, room) or [""]
        yield head + first
        yield from (" " * len(head) + line for line in more)


def _plain_data(rule: type[Rule]) -> dict[str, Any]:
    page = page_of(rule)
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity.value,
        "since": rule.since,
        "title": page.title,
        "sections": page.sections,
    }
