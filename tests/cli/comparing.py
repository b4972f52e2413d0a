"""Runs a program once as Python runs it and once under ``deviceguard run``."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What can be seen of a run from outside."""

    status: int
    stdout: str
    stderr: str


def python(folder: pathlib.Path, *arguments: str, **options) -> Outcome:
    """``python arguments...``."""
    return execute(folder, [sys.executable, *arguments], **options)


def guarded(folder: pathlib.Path, *arguments: str, flags: Sequence[str] = ("--quiet",), **options) -> Outcome:
    """``python -m deviceguard run flags... arguments...``."""
    return execute(folder, [sys.executable, "-m", "deviceguard", "run", *flags, *arguments], **options)


def deviceguard(folder: pathlib.Path, *arguments: str, **options) -> Outcome:
    """``python -m deviceguard arguments...``."""
    return execute(folder, [sys.executable, "-m", "deviceguard", *arguments], **options)


def execute(folder: pathlib.Path, command: Sequence[str], input: str | None = None, **variables: str) -> Outcome:
    """Run a command in a folder, with further environment variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEVICEGUARD", "COLUMNS"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", **variables},
        input=input,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def assert_same(folder: pathlib.Path, *arguments: str, **options) -> Outcome:
    """Both runs look the same from outside; how they looked."""
    plain = python(folder, *arguments, **options)
    here = guarded(folder, *arguments, **options)
    assert here == plain, f"without the guard:\n{plain}\nwith it:\n{here}"
    return plain
