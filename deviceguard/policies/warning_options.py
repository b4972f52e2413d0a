"""``python -W error::deviceguard.DeviceGuardWarning``, which Python reads too early to know the category.

The interpreter interprets ``-W`` and ``PYTHONWARNINGS`` before installed packages can be imported, says "Invalid -W
option ignored" of every category that comes from one, and goes on. The person meant it, so the option is read again.
"""

from __future__ import annotations

import functools
import re
import sys
import warnings

from deviceguard.errors import DeviceGuardWarning

_NAMES = ("deviceguard.DeviceGuardWarning", "deviceguard.errors.DeviceGuardWarning")
_ACTIONS = ("default", "always", "ignore", "module", "once", "error")


@functools.cache
def adopt() -> None:
    """Put the options that name the guard's category in force, once in a process."""
    for option in sys.warnoptions:
        _adopt(option)


def _adopt(option: str) -> None:
    action, message, category, module, line = (part.strip() for part in (option + "::::").split(":")[:5])
    full = next((known for known in _ACTIONS if action and known.startswith(action)), None)
    if category in _NAMES and full is not None and (not line or line.isdigit()):
        place = re.escape(module) + r"\Z" if module else ""
        warnings.filterwarnings(full, re.escape(message), DeviceGuardWarning, place, int(line or 0))  # type: ignore[arg-type]
