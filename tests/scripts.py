"""Runs a source text as a user's script under the guard, in this process."""

from __future__ import annotations

import contextlib
import gc
import linecache
import pathlib
import runpy
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import deviceguard
from deviceguard.errors import DeviceGuardWarning
from deviceguard.reports.report import Report

Exceptions = type[BaseException] | tuple[type[BaseException], ...]


def run_script(
    source: str,
    simulate: str | None = "cuda",
    *,
    policy: str = "warn",
    raises: Exceptions = (),
    may_raise: Exceptions = (),
    argv: Sequence[str] = (),
    keep_in: pathlib.Path | None = None,
    **settings: Any,
) -> Report:
    """Run a script as ``__main__`` and return what the guard found.

    Args:
        source: the script; common indentation and a leading blank line are removed, so that line 1 is the first line
            with text. It imports what it uses.
        simulate: the device to simulate, None for none.
        policy: ``warn``, ``strict`` or ``migrate``. Warnings of the guard are silenced here: read the report.
        raises: the exception the script must end with.
        may_raise: exceptions the script may end with. Any other exception of the script fails the test.
        argv: arguments of the script.
        keep_in: the folder the script is written to, by default one that is gone afterwards.
        settings: further settings of the guard.
    """
    import torch

    from deviceguard.guard import Guard

    gc.collect()  # optimizers of earlier tests must not be found on the heap
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = pathlib.Path(keep_in or folder, "script.py")
        path.write_text(plain(source))
        stack.enter_context(_arguments([str(path), *argv]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeviceGuardWarning)
        if simulate is not None:
            stack.enter_context(deviceguard.simulate(simulate))
        guard = Guard(policy, settings)
        report = Report()
        try:
            with guard as report:
                runpy.run_path(str(path), run_name="__main__")
        except BaseException as error:
            if not (isinstance(error, raises) or isinstance(error, may_raise)):
                raise
            error.__traceback__ = None  # its frames hold the script's models and optimizers
        else:
            if raises:
                raise AssertionError(f"the script was to end with {raises}, and ended well")
        finally:
            linecache.cache.pop(str(path), None)
    return report


def plain(source: str) -> str:
    """The text as it is run: without common indentation and without blank lines at the start."""
    return textwrap.dedent(source).lstrip("\n")


def line_of(source: str, text: str, occurrence: int = 1) -> int:
    """The number of the line of a script that contains a text, to compare a finding's line with."""
    lines = [number for number, line in enumerate(plain(source).splitlines(), 1) if text in line]
    return lines[occurrence - 1]


def codes(report: Report) -> list[str]:
    """The codes of a report's findings, each once, sorted."""
    return sorted({finding.rule for finding in report.findings})


def loud(report: Report) -> list[str]:
    """The findings of severity ``error`` or ``warning`` as text; empty for correct code."""
    from deviceguard.reports.text import finding_text

    return [finding_text(f) for f in report.findings if f.severity is not deviceguard.Severity.ADVICE]


@contextlib.contextmanager
def _arguments(argv: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(argv)
    try:
        yield
    finally:
        sys.argv = before
