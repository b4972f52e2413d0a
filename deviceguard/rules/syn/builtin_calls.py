"""Whether a line is running a builtin such as ``max()``, looked up in the source once for each line."""

from __future__ import annotations

from types import FrameType

from deviceguard.naming.handled import called


class BuiltinCalls:
    """Some builtins.

    Args:
        names: their names.
    """

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self._known: dict[tuple[str, int, int], bool] = {}

    def running_in(self, frame: FrameType) -> bool:
        """True when the frame's running instruction is a call of one of them."""
        key = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = called(frame) in self._names
        return found
