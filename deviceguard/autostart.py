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


def _close_at_exit(session: Session) -> None:
    """Judge and report when the process ends, with the exception that ends it if there is one."""
    import atexit

    last: list[BaseException] = []
    shown = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> Any:
        last.append(error)
        return shown(kind, error, traceback)

    def close() -> None:
        try:
            session.close(last[-1] if last else None)
            _report(session)
        except Exception as problem:
            _say(f"deviceguard could not finish its report: {problem!r}")

    sys.excepthook = remember
    atexit.register(close)


def _report(session: Session) -> None:
    from deviceguard.reports.terminal import show

    if len(session.report) and sys.stderr is not None:
        show(session.report, sys.stderr)


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except Exception:
        pass  # nobody to tell; the job matters more
