"""XLA003: values read before the step marker, so that the graph is run piecemeal."""

from __future__ import annotations

import sys
from typing import ClassVar

from deviceguard.events import PendingRead
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.expressions import CallText, running_call
from deviceguard.naming.frames import libraries_between, user_frame
from deviceguard.rules.rule import on
from deviceguard.rules.xla.habit_rule import HabitRule
from deviceguard.rules.xla.per_step import Habit, newly, words_for

_OWN_READS = ("torch/amp/", "torch/optim/", "torch_xla/amp/")
"""Where libraries read for a reason of their own that is documented."""


class ReadBeforeMarker(HabitRule):
    """A value is read between the computation of a step and its step marker, at nearly every step.

    What it does:
        In steps that follow one in which a graph ran before the marker, watches which call made it run: the counters
        of executed graphs are read before and after each call. Lines that do so in nearly every watched step are
        reported.

    Why it hurts:
        The read cuts the step in two: the part it needs is compiled as a graph of its own and run while the host
        waits, and what both parts share is computed again at the marker.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x = torch.ones(4, 8, device=device)
        total = 0.0
        for step in range(8):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            total += loss.item()
            optimizer.step()
            torch_xla.sync()

    Use instead:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x = torch.ones(4, 8, device=device)
        total = torch.zeros((), device=device)
        for step in range(8):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            total += loss.detach()
            optimizer.step()
            torch_xla.sync()
        print(total.item())

    When it stays silent:
        For reads after the marker (the value is there), in step closures, every so many steps, during evaluation, and
        for the reads of gradient scalers and optimizers.

    Repair:
        None: the order of the lines is the program's.

    References:
        https://github.com/pytorch/xla/issues/2120
        https://github.com/pytorch/xla/pull/2770
        https://github.com/pytorch/xla/issues/2715
    """

    code: ClassVar[str] = "XLA003"
    name: ClassVar[str] = "read-before-marker"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    @on(PendingRead)
    def read(self, event: PendingRead) -> None:
        """A call made an unfinished graph run."""
        frame = user_frame()
        files = [file for _, file in libraries_between(sys._getframe(), frame)]
        if frame is None or any(part in file.replace("\\", "/") for file in files for part in _OWN_READS):
            return
        self.habits.note(event.call, _subject_of(running_call(frame)))

    def told(self, habit: Habit, form: str) -> Finding:  # noqa: D102
        what = habit.detail or "A tensor"
        return self.finding(
            f"{what} is read by {words_for(habit.call)} before {form} ends the step, in {habit.steps} of "
            f"{self.habits.watched} steps watched: the unfinished graph is compiled and run for it, and its work is "
            "done again at the marker.",
            f"keep {habit.detail or 'it'} on the device and read it after {form}, every so many steps",
            [Subject(habit.detail or habit.call, "tensor")],
            site=habit.site,
            count=newly(habit),
        )


def _subject_of(text: CallText | None) -> str:
    """The user's name for what is read: ``loss`` in ``loss.item()`` and ``float(loss)``."""
    if text is None or text.kind != "call":
        return ""
    owner, _, method = text.callee.rpartition(".")
    if owner and method:
        return owner
    return text.positional[0] or "" if len(text.positional) == 1 else ""
