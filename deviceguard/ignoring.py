"""``# deviceguard: ignore[SYN001]``: silences rules for the statement the comment stands on."""

from __future__ import annotations

import ast
import functools
import linecache
import re

from deviceguard.findings import Site

_MARK = re.compile(r"#\s*deviceguard:\s*ignore(?:\s*\[([^\]]*)\])?", re.IGNORECASE)


def is_ignored(code: str, site: Site | None) -> bool:
    """True when a comment in the statement at the site names the rule, its family, or no rule at all."""
    if site is None or site.line < 1:
        return False
    named = _named_at(site.file, site.line, site.source)
    return any(part == "ALL" or code.startswith(part) for part in named)


@functools.lru_cache(maxsize=1024)
def _named_at(file: str, line: int, source: str | None) -> frozenset[str]:
    """What the comments in the statement at a line name; ``source`` tells versions of a line apart in the cache."""
    lines = linecache.getlines(file)
    if not any("deviceguard" in text for text in lines):
        return _named_in(source or "")
    first, last = _extent("".join(lines), line)
    return _named_in(source or "").union(*(_named_in(text) for text in lines[first - 1 : last]))


def _named_in(text: str) -> frozenset[str]:
    mark = _MARK.search(text)
    if mark is None:
        return frozenset()
    if mark.group(1) is None:
        return frozenset({"ALL"})
    return frozenset(part.strip().upper() for part in mark.group(1).split(",") if part.strip())


def _extent(text: str, line: int) -> tuple[int, int]:
    """First and last line of the statement at a line; of a compound statement the header alone."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return line, line
    around = [
        (first, last)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        for first, last in (_lines_of(node),)
        if first <= line <= last
    ]
    return max(around, key=lambda extent: extent[0], default=(line, line))


def _lines_of(node: ast.stmt) -> tuple[int, int]:
    body = getattr(node, "body", None)
    last = node.end_lineno or node.lineno
    if isinstance(body, list) and body:
        last = max(node.lineno, body[0].lineno - 1)
    return node.lineno, last
