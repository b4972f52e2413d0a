"""Takes the guard's own frames out of tracebacks, so that they read as they would without it."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import TracebackType

from deviceguard.naming.frames import origin

_TO_MODE = "/torch/overrides.py"
"""Where PyTorch hands a call to a function mode, such as the simulation's."""
_TO_WRAPPER = ("/torch/_compile.py", "/torch/_dynamo/eval_frame.py")
"""Where PyTorch calls a function that compilation is kept away from, such as the guard's."""


def without_guard(error: BaseException) -> None:
    """Unlink the guard's frames from the traceback of an exception and of those it is chained to."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = cleaned(current.__traceback__)
        waiting += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]


def cleaned(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the guard's frames and without the detours that PyTorch takes to reach them."""
    entries = list(_entries(traceback))
    kept = _without_detours([entry for entry in entries if not _is_ours(entry)]) if _is_inside(entries) else entries
    kept = [entry for entry in kept if not _is_ours(entry)]
    for entry, following in zip(kept, [*kept[1:], None], strict=False):
        entry.tb_next = following
    return kept[0] if kept else None


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename.replace("\\", "/")


def _is_ours(entry: TracebackType) -> bool:
    return origin(entry.tb_frame.f_code.co_filename) == "guard"


def _is_inside(entries: list[TracebackType]) -> bool:
    """True when the program's frames lead into the guard's again."""
    owners = [_is_ours(entry) for entry in entries]
    return False in owners and True in owners[owners.index(False) :]


def _without_detours(entries: list[TracebackType]) -> list[TracebackType]:
    kept: list[TracebackType] = []
    for entry in reversed(entries):
        is_wrapper = not kept and _file(entry).endswith(_TO_WRAPPER)
        if not (is_wrapper or _file(entry).endswith(_TO_MODE) or _is_entered_again(entry, kept)):
            kept.append(entry)
    return kept[::-1]


def _is_entered_again(entry: TracebackType, inner: list[TracebackType]) -> bool:
    """True for the first of two passes through one function of PyTorch: to the mode, and then in earnest."""
    if not inner or inner[-1].tb_frame.f_code is not entry.tb_frame.f_code:
        return False
    return "handle_torch_function(" in linecache.getline(entry.tb_frame.f_code.co_filename, entry.tb_lineno)
