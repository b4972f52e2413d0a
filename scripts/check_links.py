"""Checks that every relative link in the documentation leads to a file, and every anchor to a heading.

python scripts/check_links.py            # exit status 1 and one line for each broken link
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Print the broken links; the exit status."""
    broken = [problem for page in pages() for problem in broken_links(page)]
    for problem in broken:
        print(problem, file=sys.stderr)
    return 1 if broken else 0


def pages() -> list[pathlib.Path]:
    """Every page that a person reads, outside of hidden and built folders."""
    folders = [ROOT / name for name in ("docs", "examples", "benchmarks", "integrations")]
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def broken_links(page: pathlib.Path) -> Iterator[str]:
    """One line for each link of a page that leads nowhere."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists():
            yield f"{page.relative_to(ROOT)}: {target}: no such file"
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal):
            yield f"{page.relative_to(ROOT)}: {target}: no such heading"


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    sys.exit(main())
