"""``deviceguard rules``: the catalogue."""

from __future__ import annotations

import json
from typing import Any

import click

from deviceguard.rules.page import page_of
from deviceguard.rules.registry import rule_classes
from deviceguard.rules.rule import Rule


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the whole pages.")
def rules(as_json: bool) -> None:
    """List the rules: code, name, severity and what each catches."""
    found = rule_classes()
    if as_json:
        click.echo(json.dumps([_plain_data(rule) for rule in found], indent=1))
        return
    width = max((len(rule.name) for rule in found), default=0)
    for rule in found:
        click.echo(f"{rule.code}  {rule.name:<{width}}  {rule.severity.value:<7}  {page_of(rule).title}")
    click.echo("\n'deviceguard explain CODE' has the page of a rule.")


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
