"""Writes the pages that say what stands in the code: docs/rules/ from the rule classes, docs/settings.md.

python scripts/generate_docs.py            # write what has changed
python scripts/generate_docs.py --check    # write nothing; exit status 1 when a page is not current
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import pathlib
import re
import sys
from collections.abc import Iterator

from deviceguard.rules.page import EXAMPLE_SECTIONS, Page, page_of
from deviceguard.rules.registry import FOLDER, SECTIONS, families, rule_classes, rule_files
from deviceguard.rules.rule import Rule
from deviceguard.settings import Settings

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs"
NOTE = "<!-- Written by scripts/generate_docs.py from the code. Change it there. -->\n"
SETTINGS = """
A setting is a keyword argument (`deviceguard.watch(sync_share=0.5)`), an environment variable
(`DEVICEGUARD_SYNC_SHARE=0.5`; `DEVICEGUARD` alone is the policy), or a key of `[tool.deviceguard]` in the nearest
`pyproject.toml`. The first of these that has it wins. `deviceguard run` takes the common ones as options. An unknown
name, rule or value is an error that names the closest match.

```toml
[tool.deviceguard]
ignore = ["SYN001"]
sync_share = 0.5
```

Codes are given as families or single rules, in text or in a list: `"DEV,OPT001"`, `["DEV", "OPT001"]`.

| setting | default | meaning |
| --- | --- | --- |
"""


def main() -> int:
    """Write or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a page is not current")
    differing = stale(TARGET)
    if parser.parse_args().check:
        for path in differing:
            print(f"not current: {path.relative_to(ROOT)}; run python scripts/generate_docs.py", file=sys.stderr)
        return 1 if differing else 0
    write(TARGET)
    print(f"{len(differing)} of {len(pages())} pages written to {TARGET.relative_to(ROOT)}")
    return 0


def stale(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that are missing, too many, or other than they would be written now."""
    wanted = pages()
    present = {path.relative_to(folder).as_posix() for path in [*folder.glob("rules/*.md"), folder / "settings.md"]}
    differing = {name for name, text in wanted.items() if _read(folder / name) != text}
    return [folder / name for name in sorted(differing | (present - wanted.keys()))]


def write(folder: pathlib.Path) -> None:
    """Bring the folder up to date; unchanged files are left alone."""
    wanted = pages()
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    for path in stale(folder):
        text = wanted.get(path.relative_to(folder).as_posix())
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Path below docs/ and text of every page."""
    rules = rule_classes()
    own = {f"rules/{rule.code}.md": rule_page(rule) for rule in rules}
    return {"rules/index.md": catalogue(rules), "settings.md": settings_page(), **own}


def settings_page() -> str:
    """All settings with their defaults and meanings."""
    meanings = dict(re.findall(r"^    +(\w+): (.*(?:\n {12}.*)*)", inspect.getdoc(Settings) or "", re.MULTILINE))
    rows = [
        f"| `{field.name}` | {shown(field.default)} | {markdown(' '.join(meanings[field.name].split()))} |"
        for field in dataclasses.fields(Settings)
    ]
    return "\n".join([NOTE, "# Settings", SETTINGS.rstrip("\n"), *rows]) + "\n"


def shown(default: object) -> str:
    """A default as a person would write it."""
    if isinstance(default, tuple):
        return f"`{','.join(default)}`" if default else ""
    return "" if default is None else f"`{default}`"


def catalogue(rules: list[type[Rule]]) -> str:
    """The table of all rules, a section for each family."""
    lines = [
        NOTE,
        "# Rules",
        "",
        f"{len(rules)} rules. `error`: the run is wrong or will crash. `warning`: it is slow, fragile, or loses work. "
        "`advice`: it could be faster or clearer; advice never raises.",
        "",
        "Select with `--select DEV,OPT001`, leave out with `--ignore SYN`, silence one line with "
        '`# deviceguard: ignore[SYN001]`, a region with `deviceguard.allow("SYN")`.',
    ]
    for family in families():
        lines += ["", f"## {family}: {family_title(family)}", "", "| code | name | severity | what it says |"]
        lines += ["| --- | --- | --- | --- |"]
        lines += [row(rule) for rule in rules if rule.code.startswith(family)]
    return "\n".join(lines) + "\n"


def row(rule: type[Rule]) -> str:
    """One line of the catalogue."""
    title = markdown(page_of(rule).title).replace("|", "\\|")
    return f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity.value} | {title} |"


def family_title(family: str) -> str:
    """The first line of the family's package docstring, without its full stop."""
    text = (FOLDER / family.lower() / "__init__.py").read_text(encoding="utf-8")
    found = re.match(r'"""(?:[A-Z]{3}: )?(.*?)\.?(?:"""|\n)', text)
    return found.group(1) if found else family


def rule_page(rule: type[Rule]) -> str:
    """The page of one rule."""
    page = page_of(rule)
    head = [NOTE, f"# {rule.code} {rule.name}", "", markdown(page.title), "", *facts(rule)]
    return "\n".join([*head, *(line for name in SECTIONS for line in section(page, name))]) + "\n"


def facts(rule: type[Rule]) -> Iterator[str]:
    """What is declared in the class: severity, version, where the source is."""
    source = f"../../{rule_files()[rule.code].replace('.', '/')}.py"
    yield f"Severity: `{rule.severity.value}`. Since {rule.since}. [Source]({source})."
    if rule.needs_accelerator:
        yield "Speaks only where there is an accelerator, real or simulated."
    if rule.raises_in_strict and rule.severity.value != "error":
        yield "`strict` raises it."


def section(page: Page, name: str) -> Iterator[str]:
    """One section with its heading."""
    text = page.sections[name]
    yield from ("", f"## {name}", "")
    if name in EXAMPLE_SECTIONS:
        yield from ("```python", text, "```")
    elif name == "References":
        yield from (f"- {line}" for line in text.splitlines() if line.strip())
    else:
        yield markdown(text)


def markdown(text: str) -> str:
    """Docstring text as markdown."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def _read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
