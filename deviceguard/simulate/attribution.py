"""Warnings of PyTorch's are shown at the user's line, not at a line of ours that stands between the two.

PyTorch attributes a warning to the frame that called it, or to one so many callers out. Where a handler or a patch of
ours makes the call, that is our line: shown there, a warning would name a file nobody can edit, and the second line of
the user's that earns it would stay silent. What is shown is put right; filters act on warnings as before.
"""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

_OWN = str(pathlib.Path(__file__).resolve().parents[1]) + os.sep
#: Where PyTorch hands a call to a mode: its caller is a function that asks for the second time.
_HANDING_ON = f"torch{os.sep}overrides.py"


class _Attribution:
    """Counts who needs it; the first puts it in place, the last takes it away."""

    def __init__(self) -> None:
        self.users = 0
        self.before: Callable[..., Any] | None = None
        self.lock = threading.Lock()

    def install(self) -> None:
        """Put it in place, or count one more user."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                module: Any = warnings
                self.before = module._showwarnmsg
                module._showwarnmsg = self._show

    def uninstall(self) -> None:
        """Count one user less."""
        with self.lock:
            self.users -= 1
            if self.users == 0:
                module: Any = warnings
                module._showwarnmsg = self.before

    def _show(self, message: Any) -> None:
        if str(message.filename).startswith(_OWN):
            frame = _users(sys._getframe(1), message)
            if frame is not None and not _moved(message, frame):
                return
        if self.before is not None:
            self.before(message)


ATTRIBUTION = _Attribution()
"""The one of this process."""


def _users(start: FrameType, message: Any) -> FrameType | None:
    """The frame the warning would have named without us."""
    frame: FrameType | None = start
    while frame is not None and not (frame.f_code.co_filename == message.filename and frame.f_lineno == message.lineno):
        frame = frame.f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_HANDING_ON):
            frame = frame.f_back.f_back if frame.f_back is not None else None
        elif file.startswith(_OWN):
            frame = frame.f_back
        else:
            break
    return frame


def _moved(message: Any, frame: FrameType) -> bool:
    """Give the warning its place; False where that place has shown it already and it is to be shown once."""
    key = (str(message.message), message.category, message.lineno)
    registry = _registry_of(message.filename, key)
    message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno
    if registry is None:
        return True  # shown always
    del registry[key]
    shown = frame.f_globals.setdefault("__warningregistry__", {})
    place = (*key[:2], message.lineno)
    first = place not in shown
    shown[place] = True
    return first


def _registry_of(filename: str, key: tuple[Any, ...]) -> dict[Any, Any] | None:
    """Where Python has noted that the warning was shown at our line; None where it was not noted."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == filename:
            registry = vars(module).get("__warningregistry__")
            return registry if registry is not None and key in registry else None
    return None
