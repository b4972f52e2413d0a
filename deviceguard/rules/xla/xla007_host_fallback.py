"""XLA007: operations the device does not have, which run on the host."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.events import HostFallback
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.rule import on
from deviceguard.rules.xla.fallbacks import missing
from deviceguard.rules.xla.habit_rule import HabitRule
from deviceguard.rules.xla.per_step import Habit, newly, words_for


class HostFallbackOp(HabitRule):
    """An operation has no implementation for the device and runs on the host, in nearly every step.

    What it does:
        Reads the ``aten::`` counters, which count exactly the operations that ran on the host, and finds the line that
        makes them grow.

    Why it hurts:
        At each such call the graph collected so far is compiled and run, its values are copied to the host, the
        operation runs there on the CPU, and the result is uploaded again. One of them in a step can cost more than the
        step.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 8).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x = torch.randn(16, 8, device=device)
        for step in range(8):
            loss = net(x).median()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()

    Use instead:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 8).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x = torch.randn(16, 8, device=device)
        for step in range(8):
            loss = net(x).flatten().sort().values[63]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()

    When it stays silent:
        During initialisation and evaluation, where it happens now and then only, and for reads of single values, which
        XLA003 and the SYN family judge.

    Repair:
        None: another formulation is the program's to choose.

    References:
        https://github.com/pytorch/xla/issues/3080
        https://github.com/pytorch/xla/issues/2715
        https://github.com/pytorch/xla/issues/4985
    """

    code: ClassVar[str] = "XLA007"
    name: ClassVar[str] = "host-fallback"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    @on(HostFallback)
    def fell_back(self, event: HostFallback) -> None:
        """A call ran something on the host."""
        names = missing(event.ops)
        if names:
            self.habits.note(event.call, ", ".join(names))

    def told(self, habit: Habit, form: str) -> Finding:  # noqa: D102
        return self.finding(
            f"{words_for(habit.call)} needs {habit.detail}, which this device lacks: it ran on the host in "
            f"{habit.steps} of {self.habits.watched} steps watched. Each time the graph so far is run, "
            "its values come to the host and the result goes back.",
            f"write it with other operations ({habit.detail} has no lowering), or compute it outside of the step",
            [Subject(habit.detail, "operation")],
            site=habit.site,
            count=newly(habit),
        )
