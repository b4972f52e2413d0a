"""Takes the guard's own frames out of tracebacks, so that they read as they would without it."""

from __future__ import annotations

from types import TracebackType

from deviceguard.naming.frames import origin


def without_guard(error: BaseException) -> None:
    """Unlink the guard's frames from the traceback of an exception and of those it is chained to."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _cleaned(current.__traceback__)
        waiting += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


def _cleaned(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    kept = traceback
    while kept is not None:
        following = kept.tb_next
        while following is not None and _is_ours(following):
            following = following.tb_next
        kept.tb_next = following
        kept = following
    return traceback


def _is_ours(traceback: TracebackType) -> bool:
    return origin(traceback.tb_frame.f_code.co_filename) == "guard"
