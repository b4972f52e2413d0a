"""``watch``, ``strict`` and ``migrate``: context managers and decorators alike."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from deviceguard import settings as settings_module
from deviceguard.decorating import around
from deviceguard.reports.report import Report

if TYPE_CHECKING:
    from deviceguard.session import Session

_F = TypeVar("_F", bound=Callable[..., Any])


class Guard:
    """A guard for one block or one function; used by ``with`` or as a decorator.

    A decorated function has a session for each call. Under ``strict`` each call raises anew; otherwise its calls share
    a report, so that what was said once is not said at each call.

    Args:
        policy: ``warn``, ``strict`` or ``migrate``.
        given: settings as keyword arguments, see :class:`deviceguard.settings.Settings`.

    Attributes:
        report: what was found in the block that was entered last, or in all calls of the decorated function.

    Raises:
        SettingsError: an unknown setting, rule or value.
    """

    def __init__(self, policy: str, given: dict[str, Any]) -> None:
        self._settings = settings_module.load({"policy": policy, **given})
        self._session: Session | None = None
        self.report = Report()

    def __enter__(self) -> Report:
        from deviceguard.session import Session

        if self._session is not None:
            raise RuntimeError("this guard is already open; make a new one for a nested block or another thread")
        self.report = Report()
        self._session = Session(self._settings, report=self.report)
        return self._session.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(error)

    def __call__(self, function: _F) -> _F:  # noqa: D102
        return around(function, whole=self._for_a_call)

    def _for_a_call(self) -> _Call:
        if self._settings.policy == "strict":
            self.report = Report()
        return _Call(self._settings, self.report)

    def undo(self) -> int:
        """Take back what ``migrate`` changed in the user's objects; how many repairs that were."""
        return self.report.undo()

    def step(self) -> None:
        """Say that a training step ended, for loops without an optimizer of PyTorch."""
        from deviceguard.hub import HUB

        if self._session is not None:
            HUB.emit(self._session.engine.steps.advance())


class _Call:
    """The guard around one call of a decorated function."""

    def __init__(self, settings: settings_module.Settings, report: Report) -> None:
        from deviceguard.session import Session

        self._session = Session(settings, report=report)

    def __enter__(self) -> Report:
        return self._session.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.close(error)


@overload
def watch(function: _F, /) -> _F: ...
@overload
def watch(**settings: Any) -> Guard: ...
def watch(function: Any = None, /, **settings: Any) -> Any:
    """Warn about what is wrong, never raise.

    >>> import deviceguard
    >>> with deviceguard.watch() as report:
    ...     pass
    >>> report.findings
    []
    """
    return _guard("warn", function, settings)


@overload
def strict(function: _F, /) -> _F: ...
@overload
def strict(**settings: Any) -> Guard: ...
def strict(function: Any = None, /, **settings: Any) -> Any:
    """Raise ``DeviceGuardError`` on the first error-level finding; warn about the rest."""
    return _guard("strict", function, settings)


@overload
def migrate(function: _F, /) -> _F: ...
@overload
def migrate(**settings: Any) -> Guard: ...
def migrate(function: Any = None, /, **settings: Any) -> Any:
    """Repair what can be repaired, and say what was moved."""
    return _guard("migrate", function, settings)


def _guard(policy: str, function: Callable[..., Any] | None, given: dict[str, Any]) -> Any:
    """A guard, or with a function (``@deviceguard.strict`` without brackets) the function under one."""
    guard = Guard(policy, given)
    return guard if function is None else guard(function)
