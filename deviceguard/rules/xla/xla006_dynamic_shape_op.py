"""XLA006: operations whose result has a shape that depends on values."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.events import HostFallback
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.rule import on
from deviceguard.rules.xla.fallbacks import dynamic
from deviceguard.rules.xla.habit_rule import HabitRule
from deviceguard.rules.xla.per_step import Habit, newly, words_for

_STATIC = {
    "masked_select": "multiply by the mask, or torch.where(mask, x, 0), and divide by mask.sum()",
    "nonzero": "torch.where(mask, x, 0), or x * mask, which keep the shape",
    "_unique2": "one_hot over a known number of classes, or make the values unique on the host beforehand",
    "repeat_interleave": "repeat_interleave with an int, or gather with indices computed on the host beforehand",
    "bincount": "torch.nn.functional.one_hot(x, classes).sum(0)",
}


class DynamicShapeOp(HabitRule):
    """An operation whose result has as many elements as the values say: masks, ``nonzero``, ``unique``.

    What it does:
        Finds the line that calls it in nearly every watched step, by the counters of operations that ran on the host.

    Why it hurts:
        A graph needs fixed shapes. The graph collected so far is run, the values come to the host, the operation runs
        there, the result goes back, and whatever follows is compiled anew whenever the number of elements differs.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(8):
            y = net(torch.randn(8, 8, device=device))
            loss = y.masked_select(y > 0).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()

    Use instead:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(8):
            y = net(torch.randn(8, 8, device=device))
            loss = (y * (y > 0)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()

    When it stays silent:
        On host tensors (preparing a batch), outside of training steps, and where it happens now and then only.

    Repair:
        None: the replacement with a fixed shape depends on what follows.

    References:
        https://github.com/pytorch/xla/issues/1509
        https://github.com/pytorch/xla/issues/4985
        https://github.com/pytorch/xla/pull/5631
    """

    code: ClassVar[str] = "XLA006"
    name: ClassVar[str] = "dynamic-shape-op"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    @on(HostFallback)
    def fell_back(self, event: HostFallback) -> None:
        """A call ran something on the host."""
        names = dynamic(event.ops)
        if names:
            self.habits.note(event.call, ", ".join(names))

    def told(self, habit: Habit, form: str) -> Finding:  # noqa: D102
        first = habit.detail.split(", ")[0]
        return self.finding(
            f"The result of {words_for(habit.call)} has a shape that depends on values ({habit.detail}), in "
            f"{habit.steps} of {self.habits.watched} steps watched: the graph ends here, the operation "
            "runs on the host, and what follows is compiled anew when the number of elements changes.",
            f"keep the shape fixed: {_STATIC.get(first, 'torch.where(mask, x, 0) or multiplication with the mask')}",
            [Subject(habit.call, "operation")],
            site=habit.site,
            count=newly(habit),
        )
