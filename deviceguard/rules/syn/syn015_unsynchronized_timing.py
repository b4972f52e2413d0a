"""SYN015: a host clock around asynchronous device work."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.blocking import present_types, wait_call
from deviceguard.events import ClockRead, StepEnded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.expressions import running_node
from deviceguard.naming.frames import site_of, user_frame
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_MANY_STEPS = 2


class UnsynchronizedTiming(Rule):
    """A clock of the host is read before and after device work, with nothing that waits for the device in between.

    What it does:
        Watches ``time.perf_counter()``, ``time.time()`` and ``time.monotonic()`` in the user's own code, and reports
        the end of a measurement (a difference of two readings) between which work was launched on a device that nobody
        waited for.

    Why it hurts:
        Launching is quick, the work is not done yet: the time measured is that of the launches. The real cost shows up
        at the next read of a value, in another line's measurement.

    Example:
        import time

        a = torch.randn(64, 64, device="cuda")
        start = time.perf_counter()
        b = a @ a @ a
        print(f"took {time.perf_counter() - start:.6f} s")

    Use instead:
        import time

        a = torch.randn(64, 64, device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        b = a @ a @ a
        torch.cuda.synchronize()
        print(f"took {time.perf_counter() - start:.6f} s")

    When it stays silent:
        Where anything in between made the host wait (a value read, a synchronisation); where the readings are two or
        more training steps apart, so that the queue's length hardly counts; for time limits (``if time.time() - start >
        limit``) and time stamps.

    Repair:
        None.

    References:
        https://www.speechmatics.com/company/articles-and-news/timing-operations-in-pytorch
        https://github.com/benchopt/benchopt/issues/581
    """

    code: ClassVar[str] = "SYN015"
    name: ClassVar[str] = "unsynchronized-timing"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._started: dict[int, tuple[int, int]] = {}
        self._steps = 0

    @on(StepEnded)
    def step_ended(self, event: StepEnded) -> None:
        """A training step is over."""
        self._steps += event.training

    @on(ClockRead)
    def read(self, event: ClockRead) -> Iterator[Finding]:
        """The user's code looks at the clock."""
        frame, thread = user_frame(), threading.get_ident()
        earlier = self._started.get(thread)
        if frame is None:
            return
        self._started[thread] = (self._steps, frame.f_lineno)
        if not event.unsettled or earlier is None or self._steps - earlier[0] >= _MANY_STEPS or not _ends(frame):
            return
        device = next(iter(present_types()), "device")
        yield self.finding(
            f"{event.call} ends a measurement that began in line {earlier[1]}, but the work launched on {device} in "
            "between may not be done: the launches are timed, not the work.",
            f"{wait_call(device)} before each reading of the clock, or a pair of events with enable_timing=True",
            site=site_of(frame),
        )


def _ends(frame: FrameType) -> bool:
    """True where the running call of a clock is the end of a measurement."""
    node = running_node(frame)
    parent: Any = getattr(node, "parent", None)
    if _is_left_of_minus(node):
        return not isinstance(getattr(parent, "parent", None), ast.Compare)
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    if not isinstance(target, ast.Name | ast.Attribute):
        return False
    name = ast.unparse(target)
    return any(
        _is_left_of_minus(other) and ast.unparse(other) == name and not isinstance(other.parent.parent, ast.Compare)
        for other in _around(parent)
    )


def _is_left_of_minus(node: Any) -> bool:
    parent = getattr(node, "parent", None)
    return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub) and parent.left is node


def _around(node: Any) -> Iterator[Any]:
    """The nodes of the function, or module, that a node stands in."""
    while getattr(node, "parent", None) is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node = node.parent
    return (other for other in ast.walk(node) if isinstance(other, ast.Name | ast.Attribute))
