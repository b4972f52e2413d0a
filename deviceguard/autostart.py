"""``DEVICEGUARD=warn python train.py``: the guard with no change in the code.

PyTorch loads every entry point of the group ``torch.backends`` at the end of ``import torch``, in spawned
processes too.
Ours reads the environment and returns at once where nothing is asked of it. It never raises: an exception here would
break the user's ``import torch``.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deviceguard.session import Session

_OFF = frozenset({"", "0", "off"})


def start_from_environment() -> None:
    """The entry point. Opens what ``DEVICEGUARD`` and ``DEVICEGUARD_SIMULATE`` ask for, for the life of the process."""
    policy = os.environ.get("DEVICEGUARD", "")
    device = os.environ.get("DEVICEGUARD_SIMULATE", "")
    if policy in _OFF and not device:
        return
    try:
        _start(policy, device)
    except Exception as problem:
        _say(f"deviceguard stays off: {problem}")


def _start(policy: str, device: str) -> None:
    if device:
        from deviceguard.simulate import enter_from_environment

        enter_from_environment()
    if policy in _OFF or "deviceguard.cli.run" in sys.modules:
        return
    from deviceguard.session import Session
    from deviceguard.settings import load

    session = Session(load({}), whole_process=True)
    session.open()
    _close_at_exit(session)
    _leave_loader_workers_alone(session)


def _leave_loader_workers_alone(session: Session) -> None:
    """A spawned DataLoader worker imports torch too; the guard goes when its loop begins.

    The worker's loop is looked up by name after torch was imported, so it can be wrapped in the child alone.
    """
    import functools
    import multiprocessing

    being_spawned = getattr(multiprocessing.current_process(), "_inheriting", False)
    if multiprocessing.parent_process() is None and not being_spawned:
        return
    from torch.utils.data._utils import worker

    from deviceguard.hub import HUB

    loop = worker._worker_loop

    @functools.wraps(loop)
    def unguarded(*args: Any, **kwargs: Any) -> Any:
        HUB.leave(session)
        return loop(*args, **kwargs)

    worker._worker_loop = unguarded


def _close_at_exit(session: Session) -> None:
    """Judge and report when the process ends, with the exception that ends it if there is one."""
    import atexit

    from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
    from deviceguard.hub import HUB

    last: list[BaseException] = []
    shown = sys.excepthook
    process = os.getpid()

    def remember(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> Any:
        last.append(error)
        return shown(kind, error, traceback)

    def close() -> None:
        if os.getpid() != process or session not in HUB.sessions:
            return  # a forked child, or a process that gave the guard up
        try:
            session.close(last[-1] if last else None)
        except (DeviceGuardError, DeviceGuardWarning):
            pass  # too late to stop the run; the report has the finding
        except Exception as problem:
            _say(f"deviceguard could not finish its report: {problem!r}")
        _report(session)

    sys.excepthook = remember
    atexit.register(close)


def _report(session: Session) -> None:
    from deviceguard.reports.terminal import show

    try:
        if len(session.report) and sys.stderr is not None:
            show(session.report, sys.stderr)
    except Exception as problem:
        _say(f"deviceguard could not show its report: {problem!r}")


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except Exception:
        pass  # nobody to tell; the job matters more
