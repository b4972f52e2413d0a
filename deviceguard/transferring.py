"""``transfers(...)``: a region in which transfers between host and devices are recorded or forbidden."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from deviceguard import settings as settings_module
from deviceguard import transfer_policy
from deviceguard.decorating import around

if TYPE_CHECKING:
    from deviceguard.session import Session

_F = TypeVar("_F", bound=Callable[..., Any])
_RULE = "SYN016"


class Transfers:
    """A region with transfer levels of its own, by ``with`` or as a decorator, for this thread and task only.

    It may be entered inside itself and from several threads and tasks at a time.
    """

    def __init__(self, levels: dict[str, str]) -> None:
        self.levels = levels
        self._watched = _Watched()

    def __enter__(self) -> None:
        transfer_policy.enter(self.levels)
        try:
            self._watched.begin()
        except BaseException:
            transfer_policy.leave(self.levels)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        transfer_policy.leave(self.levels)
        self._watched.end(error)

    def __call__(self, function: _F) -> _F:  # noqa: D102
        return around(function, each=lambda: Transfers(self.levels))


class _Watched:
    """Sees to it that somebody looks at this thread's transfers while the region lasts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, list[tuple[list[Session], Session | None]]] = {}

    def begin(self) -> None:
        """Have the thread's guards stay awake; open one where there is none that looks."""
        from deviceguard.hub import HUB

        thread = threading.get_ident()
        here = [session for session in HUB.sessions if session.thread == thread]
        able = [session for session in here if _RULE in session.settings.codes()]
        own = None
        if not able:
            own = _opened(here[-1].settings.policy if here else "strict")
            able = [own]
        for session in able:
            session.engine.steps.keep_awake(1)
        with self._lock:
            self._open.setdefault(thread, []).append((able, own))

    def end(self, error: BaseException | None) -> None:
        """Let them sleep again; close the one that was opened."""
        with self._lock:
            regions = self._open.get(threading.get_ident())
            awake, own = regions.pop() if regions else ([], None)
        for session in awake:
            session.engine.steps.keep_awake(-1)
        if own is not None:
            own.close(error)


def _opened(policy: str) -> Session:
    from deviceguard.session import Session

    session = Session(settings_module.Settings(policy=policy, select=(_RULE,)))
    session.open()
    return session


def transfers(
    *,
    host_to_device: str | None = None,
    device_to_host: str | None = None,
    device_to_device: str | None = None,
) -> Transfers:
    """A region that says which transfers are wanted in it, for this thread and task.

    Under a guard the finding is treated by the guard's policy: ``watch`` warns, ``strict`` raises. Where no guard is
    open in this thread, the region raises by itself.

    Args:
        host_to_device: ``allow``, ``log`` (implicit transfers are recorded as advice), ``disallow`` (implicit ones are
            errors), ``log_explicit`` or ``disallow_explicit`` (explicit ones too); None leaves it as it is.
        device_to_host: the same for reads and downloads.
        device_to_device: the same for copies between devices.

    Raises:
        SettingsError: there is no such level.
    """
    given = {
        "host_to_device": host_to_device,
        "device_to_host": device_to_host,
        "device_to_device": device_to_device,
    }
    return Transfers({name: settings_module.level(level) for name, level in given.items() if level is not None})
