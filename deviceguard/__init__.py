"""deviceguard watches PyTorch training from inside and says what PyTorch stays silent about.

Importing this package imports neither torch nor any other heavy library; names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deviceguard.allowing import allow as allow
    from deviceguard.errors import DeviceGuardError as DeviceGuardError
    from deviceguard.errors import DeviceGuardWarning as DeviceGuardWarning
    from deviceguard.errors import SettingsError as SettingsError
    from deviceguard.findings import Finding as Finding
    from deviceguard.findings import Severity as Severity
    from deviceguard.findings import Site as Site
    from deviceguard.findings import Subject as Subject
    from deviceguard.guard import migrate as migrate
    from deviceguard.guard import strict as strict
    from deviceguard.guard import watch as watch
    from deviceguard.reports.report import Report as Report
    from deviceguard.simulate import simulate as simulate
    from deviceguard.standing import start as start
    from deviceguard.standing import stop as stop
    from deviceguard.transferring import transfers as transfers

__version__ = "0.1.0"

_HOMES = {
    "DeviceGuardError": "deviceguard.errors",
    "DeviceGuardWarning": "deviceguard.errors",
    "Finding": "deviceguard.findings",
    "Report": "deviceguard.reports.report",
    "SettingsError": "deviceguard.errors",
    "Severity": "deviceguard.findings",
    "Site": "deviceguard.findings",
    "Subject": "deviceguard.findings",
    "allow": "deviceguard.allowing",
    "migrate": "deviceguard.guard",
    "simulate": "deviceguard.simulate",
    "start": "deviceguard.standing",
    "stop": "deviceguard.standing",
    "strict": "deviceguard.guard",
    "transfers": "deviceguard.transferring",
    "watch": "deviceguard.guard",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deviceguard' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
