"""``watch``, ``strict`` and ``migrate``: context managers and decorators alike."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from deviceguard import settings as settings_module

if TYPE_CHECKING:
    from deviceguard.reports.report import Report
    from deviceguard.session import Session

_F = TypeVar("_F", bound=Callable[..., Any])


class Guard(contextlib.ContextDecorator):
    """A guard for one block or one function; used by ``with`` or as a decorator.

    Args:
        policy: ``warn``, ``strict`` or ``migrate``.
        given: settings as keyword arguments, see :class:`deviceguard.settings.Settings`.

    Raises:
        SettingsError: an unknown setting, rule or value.
    """

    def __init__(self, policy: str, given: dict[str, Any]) -> None:
        self._given = {"policy": policy, **given}
        self._settings = settings_module.load(self._given)
        self._session: Session | None = None

    def __enter__(self) -> Report:
        from deviceguard.session import Session

        if self._session is not None:
            raise RuntimeError("this guard is already open; make a new one for a nested block")
        self._session = Session(self._settings)
        return self._session.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(error)

    def __call__(self, function: _F) -> _F:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with Guard(self._given["policy"], {k: v for k, v in self._given.items() if k != "policy"}):
                return function(*args, **kwargs)

        return guarded  # type: ignore[return-value]

    def step(self) -> None:
        """Say that a training step ended, for loops without an optimizer of PyTorch."""
        from deviceguard.hub import HUB

        if self._session is not None:
            HUB.emit(self._session.engine.steps.advance())


def watch(**settings: Any) -> Guard:
    """Warn about what is wrong, never raise.

    >>> import deviceguard
    >>> with deviceguard.watch() as report:
    ...     pass
    >>> report.findings
    []
    """
    return Guard("warn", settings)


def strict(**settings: Any) -> Guard:
    """Raise ``DeviceGuardError`` on the first error-level finding; warn about the rest."""
    return Guard("strict", settings)


def migrate(**settings: Any) -> Guard:
    """Repair what can be repaired, and say what was moved."""
    return Guard("migrate", settings)
