"""The common part of the rules on what a line does in nearly every step that is watched call by call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import OptimizerStepped, StepMarked
from deviceguard.rules.rule import Rule, on
from deviceguard.rules.xla.per_step import Habit, Habits

if TYPE_CHECKING:
    from deviceguard.context import Context
    from deviceguard.findings import Finding


class HabitRule(Rule):
    """A rule that notes lines in ``habits`` and tells of those that are habits when a step is marked."""

    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.habits = Habits(context.steps, context.settings.sync_share)

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """What is being collected is a training step."""
        self.habits.stepped(event)

    @on(StepMarked)
    def marked(self, event: StepMarked) -> Iterator[Finding]:
        """A step is over."""
        for habit in self.habits.marked(event):
            yield self.told(habit, event.form)

    def told(self, habit: Habit, form: str) -> Finding:
        """The finding for a line.

        Args:
            habit: what it does.
            form: the call that marked the step.
        """
        raise NotImplementedError
