"""``deviceguard``: the entry of the command line. Each command has a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from deviceguard import __version__
from deviceguard.cli.catalogue import rules
from deviceguard.cli.explain import explain
from deviceguard.cli.run import run
from deviceguard.errors import SettingsError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="deviceguard", message="%(prog)s %(version)s")
def commands() -> None:
    """Watch PyTorch training from inside and name what is wrong, with the line and the fix."""


for command in (run, rules, explain):
    commands.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Click only parses. What a command returns is called outside of it, so that click neither sees nor translates the
    exceptions of the user's script.

    Args:
        arguments: the command line without the program's name; that of this process by default.
    """
    try:
        action = commands.main(
            args=None if arguments is None else list(arguments), prog_name="deviceguard", standalone_mode=False
        )
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except SettingsError as problem:
        click.echo(f"deviceguard: {problem}", err=True)
        sys.exit(2)
    except click.Abort:
        sys.exit(1)
    if callable(action):
        _forget("click")
        action()
    elif isinstance(action, int):
        sys.exit(action)


def _forget(package: str) -> None:
    """Let the program import a package of its own by this name, or load it at the time it wants to."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
