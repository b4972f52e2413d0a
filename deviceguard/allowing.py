"""``allow(...)``: exempts a region from rules, for this thread and task only."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, overload

from deviceguard.decorating import around
from deviceguard.rules.registry import expand

_F = TypeVar("_F", bound=Callable[..., Any])

_layers: contextvars.ContextVar[tuple[frozenset[str], ...]] = contextvars.ContextVar("deviceguard_allowed", default=())
"""What each region that this thread and task is in allows."""


class Allowance:
    """A region without some rules, by ``with`` or as a decorator.

    Holds no state: it may be entered inside itself and from several threads and tasks at a time.
    """

    def __init__(self, codes: frozenset[str]) -> None:
        self.codes = codes

    def __enter__(self) -> None:
        _layers.set((*_layers.get(), self.codes))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        layers = list(_layers.get())
        if self.codes in layers:  # regions in generators can end out of order
            del layers[len(layers) - 1 - layers[::-1].index(self.codes)]
        _layers.set(tuple(layers))

    def __call__(self, function: _F) -> _F:  # noqa: D102
        return around(function, each=lambda: Allowance(self.codes))


@overload
def allow(function: _F, /) -> _F: ...
@overload
def allow(*selectors: str) -> Allowance: ...
def allow(*selectors: Any) -> Any:
    """Exempt a region, or as a decorator a function, from rules.

    A generator is exempt while it runs, its consumer is not. ``@deviceguard.allow`` without brackets exempts a function
    from every rule.

    Args:
        selectors: codes or families, ``"SYN"``, ``"SYN001"``; none at all means every rule.

    Raises:
        SettingsError: a selector matches no rule.
    """
    if len(selectors) == 1 and callable(selectors[0]):
        return Allowance(frozenset(expand(("ALL",))))(selectors[0])
    parts = [part for selector in selectors for part in str(selector).replace(",", " ").split()]
    return Allowance(frozenset(expand(parts or ("ALL",))))


def is_allowed(code: str) -> bool:
    """True when the running region is exempt from the rule."""
    return any(code in layer for layer in _layers.get())
