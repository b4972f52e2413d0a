"""``allow(...)``: exempts a region from rules, for this thread and task only."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from deviceguard.rules.registry import expand

_allowed: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("deviceguard_allowed", default=frozenset())


@contextlib.contextmanager
def allow(*selectors: str) -> Iterator[None]:
    """Exempt a region, or as a decorator a function, from rules.

    Args:
        selectors: codes or families, ``"SYN"``, ``"SYN001"``; none at all means every rule.

    Raises:
        SettingsError: a selector matches no rule.
    """
    token = _allowed.set(_allowed.get() | expand(selectors or ("ALL",)))
    try:
        yield
    finally:
        _allowed.reset(token)


def is_allowed(code: str) -> bool:
    """True when the running region is exempt from the rule."""
    return code in _allowed.get()
