"""Tells when the program imports the package of a backend that was not there when the guard began."""

from __future__ import annotations

import functools
from collections.abc import Callable

from deviceguard.backends.devices import tracings

_WAITING_FOR: dict[str, list[Callable[[], None]]] = {}
"""By package. A post-import hook cannot be taken back, so there is one for each package."""


def after_import(adapt: Callable[[], None]) -> None:
    """Call a function once each time a backend's package, not imported so far, has been imported."""
    for tracing in tracings():
        if tracing.is_loaded():
            continue
        waiting = _WAITING_FOR.get(tracing.package)
        if waiting is None:
            import wrapt

            _WAITING_FOR[tracing.package] = [adapt]
            wrapt.register_post_import_hook(functools.partial(_arrived, tracing.package), tracing.package)
        elif adapt not in waiting:
            waiting.append(adapt)


def _arrived(package: str, module: object) -> None:
    for adapt in _WAITING_FOR.pop(package, ()):
        adapt()
