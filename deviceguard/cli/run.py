"""``deviceguard run``: run a script or module under the guard, as Python would run it without."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import click

from deviceguard.cli.supervision import Supervision
from deviceguard.cli.target import CannotRun, find_module, find_script
from deviceguard.errors import SettingsError
from deviceguard.settings import EVERY_STEP, load

_EXAMPLES = """\b
Examples:
  deviceguard run train.py --epochs 3
  deviceguard run --simulate cuda -m project.train
  deviceguard run --policy strict --ignore SYN --json findings.json train.py
"""


@click.command(
    short_help="Run a script or module under the guard.",
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--policy", metavar="warn|strict|migrate", help="What to do with a finding.  [default: warn]")
@click.option("--simulate", metavar="DEVICE", help="Simulate an accelerator: cuda, cuda:2, xla.")
@click.option("--select", metavar="CODES", help="Rules or families that are on: DEV,OPT001.  [default: all]")
@click.option("--ignore", metavar="CODES", help="Rules or families that are off.")
@click.option("--json", metavar="FILE", help="Write the findings to FILE, also when the script dies.")
@click.option(
    "--fix-diff", metavar="FILE", help="Write the edits that are certain to FILE, for patch -p0 or git apply."
)
@click.option(
    "--host-to-device", metavar="LEVEL", help="Uploads: allow, log, disallow, log_explicit, disallow_explicit."
)
@click.option("--device-to-host", metavar="LEVEL", help="The same for reads and downloads.")
@click.option("--device-to-device", metavar="LEVEL", help="The same for copies between devices.")
@click.option("--quiet", "-q", is_flag=True, help="No summary at the end.")
@click.option("-m", "is_module", is_flag=True, help="The target is a module, as with 'python -m'.")
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT|-m MODULE [ARGS]...")
def run(target: tuple[str, ...], is_module: bool, quiet: bool, **given: Any) -> Callable[[], None]:
    """Run a script, or with -m a module, under the guard.

    What follows the script belongs to the script, and its exit status is the one of this command: findings do not
    change it, unless --policy strict raises one.
    """
    settings = load(given, base=EVERY_STEP)
    if settings.json is not None:
        _check_writable(pathlib.Path(settings.json))
    if settings.fix_diff is not None:
        _check_writable(pathlib.Path(settings.fix_diff))
        _check_fixes()
    find = find_module if is_module else find_script

    def execute() -> None:
        try:
            Supervision(settings, quiet=quiet).run(lambda: find(target[0]), list(target[1:]))
        except CannotRun as problem:
            print(f"deviceguard: {problem}", file=sys.stderr)
            sys.exit(problem.status)

    return execute


def _check_writable(path: pathlib.Path) -> None:
    """Complain now and not after hours of training.

    Raises:
        SettingsError: no file can be written there.
    """
    folder = next((parent for parent in path.parents if parent.exists()), path.parent)
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"The report cannot be written to {str(path)!r}.")


def _check_fixes() -> None:
    from deviceguard.fixes.diff import MissingLibCST, check_available

    try:
        check_available()
    except MissingLibCST as problem:
        raise click.UsageError(str(problem)) from None
