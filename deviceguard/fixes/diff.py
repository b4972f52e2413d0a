"""Writes the certain edits for a report as a unified diff; the user's files stay as they are."""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
import tokenize
from collections.abc import Iterable, Iterator

from deviceguard.findings import Finding
from deviceguard.fixes.edits import Edit, MoveAfter
from deviceguard.fixes.planning import edits_for
from deviceguard.fixes.source import Source


class MissingLibCST(ImportError):
    """The extra that rewrites source is not installed."""

    def __init__(self) -> None:
        super().__init__("--fix-diff needs LibCST: pip install 'deviceguard[fix]'")


@dataclasses.dataclass(frozen=True, slots=True)
class Fixes:
    """What can be edited.

    Attributes:
        text: the diff; empty where no edit is certain.
        fixed: the findings it makes go away.
        left: the others that have a severity of error or warning, for a person to edit.
    """

    text: str
    fixed: tuple[Finding, ...]
    left: tuple[Finding, ...]


def check_available() -> None:
    """Say at once, not after hours of training, that LibCST is missing.

    Raises:
        MissingLibCST: it is.
    """
    import importlib.util

    if importlib.util.find_spec("libcst") is None:
        raise MissingLibCST


def fixes_for(findings: Iterable[Finding], root: str | os.PathLike[str] = ".") -> Fixes:
    """The edits for findings, as one diff with paths relative to a folder, for ``patch -p0`` or ``git apply`` there.

    Args:
        findings: what was found.
        root: the folder.
    """
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.site is not None:
            by_file.setdefault(_edited_file(finding), []).append(finding)
    fixed: list[Finding] = []
    left: list[Finding] = []
    texts: list[str] = []
    for file, found in sorted(by_file.items()):
        text, done = _for_file(file, found, pathlib.Path(root))
        texts.append(text)
        fixed += done
        left += [finding for finding in found if not any(finding is other for other in done)]
    return Fixes("".join(texts), tuple(fixed), tuple(f for f in left if f.severity.value != "advice"))


def write(findings: Iterable[Finding], path: str | os.PathLike[str]) -> str:
    """Write the diff for findings to a file; a line that says so.

    Raises:
        OSError: the file cannot be written.
    """
    fixes = fixes_for(findings)
    pathlib.Path(path).write_text(fixes.text, encoding="utf-8")
    shown = os.path.relpath(path)
    if not fixes.text:
        return f"No edit is certain; {shown} is empty."
    more = f"; {len(fixes.left)} more need a person" if fixes.left else ""
    return f"The edits for {len(fixes.fixed)} of the findings are in {shown}{more}: patch -p0 < {shown}"


def _edited_file(finding: Finding) -> str:
    assert finding.site is not None
    made = next((s.made_at for s in finding.subjects if s.kind == "optimizer" and s.made_at is not None), None)
    return made.file if made is not None and finding.rule == "OPT001" else finding.site.file


def _for_file(file: str, findings: list[Finding], root: pathlib.Path) -> tuple[str, list[Finding]]:
    from deviceguard.fixes.rewriting import rewritten

    text = _read(file)
    if text is None:
        return "", []
    try:
        source = Source(text)
    except SyntaxError:
        return "", []
    edits: list[Edit] = []
    done: list[Finding] = []
    for finding in findings:
        new = edits_for(finding, source)
        if new and not _collide(new, edits):
            edits += [edit for edit in new if edit not in edits]
            done.append(finding)
    after = rewritten(text, edits) if edits else text
    if after == text or not _is_python(after):
        return "", []
    return "".join(_diff(text, after, _relative(file, root))), done


def _collide(new: list[Edit], edits: list[Edit]) -> bool:
    """True where two findings want different things of one statement."""
    moved = {edit.start for edit in edits if isinstance(edit, MoveAfter)}
    return any(isinstance(edit, MoveAfter) and edit.start in moved and edit not in edits for edit in new)


def _read(file: str) -> str | None:
    try:
        with tokenize.open(file) as stream:
            return stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _is_python(text: str) -> bool:
    try:
        compile(text, "patched", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _relative(file: str, root: pathlib.Path) -> str:
    """``./train.py``: ``patch -p0`` takes it as it is, and ``git apply`` takes the dot for the folder it strips."""
    path = os.path.relpath(file, root).replace(os.sep, "/")
    return path if path.startswith("..") else f"./{path}"


def _diff(before: str, after: str, path: str) -> Iterator[str]:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), path, path)
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
