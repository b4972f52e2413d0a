"""Records what the calls of one step are given, and tells where two steps differ.

Used only in the steps after one in which a tracing backend had to compile, to run a graph early, or to go to the host:
there, next to what that costs, a few microseconds a call do not matter.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from deviceguard.events import GraphChange
from deviceguard.findings import Site
from deviceguard.naming.frames import locals_of, origin, outward, with_source

_MOST_CALLS = 20_000
_SKIPPED = frozenset({"__get__", "__set__", "_set_grad_enabled", "is_grad_enabled", "__instancecheck__", "get_device"})


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a torch function.

    Attributes:
        function: its name.
        file: file of the user's line.
        line: number of the user's line.
        scope: name of the user's function.
        numbers: the Python numbers it was given, slices and sizes included.
        shapes: sizes and dtypes of the tensors it was given.
        scalars: the user's variables there that hold a number, by name.
    """

    function: str
    file: str
    line: int
    scope: str
    numbers: tuple[Any, ...]
    shapes: tuple[Any, ...]
    scalars: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, str, int]:
        """What two calls must share to be the same call in two steps."""
        return (self.function, self.file, self.line)


class Recorder(TorchFunctionMode):
    """Watches every call of one thread while it is on its stack.

    Args:
        before_call: called before each call.
        after_call: called after it with the function's name and what ``before_call`` returned.

    Attributes:
        calls: what was recorded.
        silent: True once nobody listens any more.
    """

    def __init__(self, before_call: Callable[[], Any], after_call: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []
        self.silent = False
        self._before = before_call
        self._after = after_call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if self.silent or name in _SKIPPED:
            return func(*args, **(kwargs or {}))
        if len(self.calls) < _MOST_CALLS:
            self.calls.append(_recorded(name, args, kwargs or {}))
        before = self._before()
        result = func(*args, **(kwargs or {}))
        self._after(name, before)
        return result


def _recorded(name: str, args: Any, kwargs: Any) -> RecordedCall:
    numbers: list[Any] = []
    shapes: list[Any] = []
    for value in (*args, *kwargs.values()):
        _collect(value, numbers, shapes)
    frame = next((f for f in outward(sys._getframe(2)) if origin(f.f_code.co_filename) == "user"), None)
    if frame is None:
        return RecordedCall(name, "", 0, "", tuple(numbers), tuple(shapes), {})
    code = frame.f_code
    scalars = _scalars(frame) if numbers else {}
    return RecordedCall(
        name, code.co_filename, frame.f_lineno or 0, code.co_name, tuple(numbers), tuple(shapes), scalars
    )


def _collect(value: Any, numbers: list[Any], shapes: list[Any], depth: int = 4) -> None:
    if isinstance(value, torch.Tensor):
        shapes.append((tuple(value.shape), value.dtype))
    elif isinstance(value, bool | int | float):
        numbers.append(value)
    elif isinstance(value, slice):
        numbers.append((value.start, value.stop, value.step) if _plain(value) else "slice")
    elif isinstance(value, list | tuple) and depth and len(value) < 64:
        for item in value:
            _collect(item, numbers, shapes, depth - 1)
    elif isinstance(value, dict) and depth:
        for item in value.values():
            _collect(item, numbers, shapes, depth - 1)


def _plain(part: slice) -> bool:
    return all(end is None or isinstance(end, int) for end in (part.start, part.stop, part.step))


def _scalars(frame: FrameType) -> dict[str, Any]:
    found = {}
    for name, value in locals_of(frame).items():
        if type(value) in (int, float):
            found[name] = value
        elif name == "self":
            attributes = getattr(value, "__dict__", {})
            found.update({f"self.{key}": held for key, held in attributes.items() if type(held) in (int, float)})
    return found


def change_between(
    earlier: list[RecordedCall], later: list[RecordedCall], data_numbers: frozenset[str]
) -> GraphChange | None:
    """The first difference between two steps that makes their graphs differ; None when none can be told.

    Args:
        earlier: the calls of the one step.
        later: the calls of the next.
        data_numbers: functions whose numbers are no part of the graph.
    """
    for one, two in zip(earlier, later, strict=False):
        if one.place != two.place:
            return _count_change(one, two, earlier, later)
        if one.numbers != two.numbers and one.function not in data_numbers:
            return _number_change(one, two)
        if one.shapes != two.shapes:
            return _shape_change(one, two)
    if len(earlier) != len(later):
        longer = max(earlier, later, key=len)
        extra = longer[min(len(earlier), len(later))]
        return _count_change(extra, extra, earlier, later)
    return None


def _number_change(one: RecordedCall, two: RecordedCall) -> GraphChange:
    changed = [(a, b) for a, b in zip(one.numbers, two.numbers, strict=False) if a != b] or [(one.numbers, two.numbers)]
    before, after = changed[0]
    return GraphChange("number", two.function, _site(two), _text(before), _text(after), _changed_names(one, two))


def _shape_change(one: RecordedCall, two: RecordedCall) -> GraphChange:
    pairs = [(a, b) for a, b in zip(one.shapes, two.shapes, strict=False) if a != b] or [((one.shapes,), (two.shapes,))]
    before, after = pairs[0]
    kind = "shape" if before[0] != after[0] else "dtype"
    position = 0 if kind == "shape" else -1
    return GraphChange(kind, two.function, _site(two), _text(before[position]), _text(after[position]))


def _count_change(
    one: RecordedCall, two: RecordedCall, earlier: list[RecordedCall], later: list[RecordedCall]
) -> GraphChange | None:
    for call in (one, two):
        before = sum(other.place == call.place for other in earlier)
        after = sum(other.place == call.place for other in later)
        if before != after:
            return GraphChange("count", call.function, _site(call), f"{before} times", f"{after} times")
    return None


def _changed_names(one: RecordedCall, two: RecordedCall) -> tuple[str, ...]:
    """The variables in the line whose values changed, in the order in which they stand there."""
    site = _site(two)
    source = site.source if site is not None and site.source else ""
    changed = [name for name, value in two.scalars.items() if one.scalars.get(name, value) != value]
    found = sorted((position, name) for name in changed for position in _positions(name, source))
    return tuple(dict.fromkeys(name for _, name in found))


def _positions(name: str, source: str) -> Iterator[int]:
    for match in re.finditer(rf"(?<![\w.]){re.escape(name)}(?!\w)", source):
        yield match.start()


def _site(call: RecordedCall) -> Site | None:
    return with_source(Site(call.file, call.line, call.scope)) if call.file else None


def _text(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 3 and any(part is None for part in value[2:]):
        return ":".join("" if part is None else str(part) for part in value[:2])
    return str(value)
