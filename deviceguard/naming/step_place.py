"""Where in the program the optimizer steps, and whether another line belongs to the same turn of the loop."""

from __future__ import annotations

import ast
import functools
from types import CodeType, FrameType

from deviceguard.naming.frames import is_user_code, outward

_Spot = tuple[CodeType, int]


class StepPlace:
    """The line of the latest ``step()``, with the lines that called it."""

    def __init__(self) -> None:
        self._spots: list[_Spot] = []

    def stepped(self, frame: FrameType | None) -> None:
        """An optimizer has stepped, in a frame or one that it calls."""
        self._spots = [(found.f_code, found.f_lineno or 0) for found in _users(frame)]

    def is_in_turn(self, frame: FrameType | None) -> bool:
        """True for a line that runs with each step; False for one after or around the loop of steps.

        The innermost loop around the ``step()``, in whatever function it stands, decides: the line belongs to its turn
        where the loop is still running and the line is in its body, or is called from there.
        """
        for position, ((code, line), found) in enumerate(zip(self._spots, _users(frame), strict=False)):
            if found.f_code is not code:
                return not self._loops_below(position)
            if found.f_lineno != line:
                return not self._loops_below(position + 1) and self._shares_loop(code, line, found.f_lineno or 0)
        return True

    def _loops_below(self, position: int) -> bool:
        return any(_innermost(code, line) is not None for code, line in self._spots[position:])

    def _shares_loop(self, code: CodeType, step: int, line: int) -> bool:
        loop = _innermost(code, step)
        return loop is None or loop[0] <= line <= loop[1]


def _users(frame: FrameType | None) -> list[FrameType]:
    """The frames of the user's own code, outermost first."""
    return [found for found in outward(frame) if is_user_code(found)][::-1]


@functools.lru_cache(maxsize=1024)
def _innermost(code: CodeType, line: int) -> tuple[int, int] | None:
    """First and last line of the innermost loop of a function around one of its lines; None without one."""
    import executing

    try:
        tree = executing.Source.for_filename(code.co_filename).tree
    except Exception:
        return None
    loops = [
        (node.lineno, node.body[-1].end_lineno or 0)
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.For | ast.While | ast.AsyncFor)
    ]
    around = [(start, end) for start, end in loops if code.co_firstlineno <= start <= line <= end]
    return max(around) if around else None
