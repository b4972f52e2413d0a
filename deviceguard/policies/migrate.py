"""``migrate``: repair what can be repaired, and say what was done."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar

from deviceguard import remedies
from deviceguard.allowing import is_allowed
from deviceguard.events import Event
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import outward
from deviceguard.policies.policy import Policy
from deviceguard.policies.warn import WarnPolicy
from deviceguard.remedies import Again, CallRefused, Remedy, Settle
from deviceguard.repairing import generators, modules, operands, optimizers, variables
from deviceguard.repairing.constants import Constants
from deviceguard.repairing.modules import Moved
from deviceguard.repairing.operands import Change
from deviceguard.repairing.placement import is_in_placed_model
from deviceguard.repairs import Repair, Undo, size_text
from deviceguard.reports.report import Report
from deviceguard.rules.rule import Rule

log = logging.getLogger("deviceguard")

_COSTLY = 10
"""So many copies for one repair are told once more, with their price."""


class MigratePolicy(Policy):
    """Carries out the remedy of the rule that speaks, and tells of it; where there is none, warns as ``watch`` does.

    A call that PyTorch refused is made again with the operands where they belong. A change to an object of the
    user's is announced, logged, and can be taken back with ``report.undo()``.
    """

    wanted: ClassVar[frozenset[type[Event]]] = frozenset({CallRefused})

    def __init__(self) -> None:
        self._softly = WarnPolicy()
        self._report = Report()
        self._rules: Mapping[str, Rule] = {}
        self._constants = Constants()
        self._generators = generators.Twins()
        self._ways: dict[type[Remedy], Callable[[Any, Finding, Any], bool]] = {
            remedies.MoveOperands: self._move_operands,
            remedies.MoveToHost: self._move_to_host,
            remedies.CastOperands: self._cast_operands,
            remedies.MoveModule: self._move_module,
            remedies.MoveStrays: self._move_strays,
            remedies.MoveState: self._move_state,
            remedies.Rebind: self._rebind,
            remedies.TakeOver: self._take_over,
            remedies.DrawElsewhere: self._draw_elsewhere,
        }

    def attach(self, report: Report, rules: Mapping[str, Rule]) -> None:  # noqa: D102
        self._report, self._rules = report, rules

    def apply(self, finding: Finding, event: Event) -> None:  # noqa: D102
        if not self._repair(finding, event):
            self._softly.apply(finding, event)

    def again(self, finding: Finding, event: Event) -> None:  # noqa: D102
        self._repair(finding, event)

    def _repair(self, finding: Finding, event: Event) -> bool:
        """True where a repair was made, or is under way and will be told once the call has succeeded."""
        rule = self._rules.get(finding.rule)
        remedy = rule.remedy(event) if rule is not None else None
        way = self._ways.get(type(remedy)) if remedy is not None else None
        if way is None or not self._may(remedy, event):
            return False
        try:
            return way(remedy, finding, event)
        except Exception as problem:
            log.warning(
                "deviceguard could not repair %s: %s: %s. It only warns.",
                _name_of(finding),
                type(problem).__name__,
                problem,
            )
            return False

    def _may(self, remedy: Remedy | None, event: Event) -> bool:
        if isinstance(event, CallRefused):
            return event.again is None and not is_in_placed_model(event.traceback)
        return isinstance(remedy, remedies.MoveState | remedies.Rebind | remedies.TakeOver)

    # Remedies for a call that was refused

    def _move_operands(self, remedy: remedies.MoveOperands, finding: Finding, event: CallRefused) -> bool:
        function, home = event.function, remedy.home
        place = (event.frame.f_code, event.frame.f_lasti, function)

        def change(args: Any, kwargs: Any) -> Change | None:
            self._constants.place = place
            return operands.moved(function, args, kwargs, home, self._constants)

        return self._call_with(change, "moved to {new} before the call", finding, event)

    def _move_to_host(self, remedy: remedies.MoveToHost, finding: Finding, event: CallRefused) -> bool:
        change = functools.partial(operands.to_host, event.function)
        return self._call_with(change, "copied to the host before the call", finding, event)

    def _cast_operands(self, remedy: remedies.CastOperands, finding: Finding, event: CallRefused) -> bool:
        change = functools.partial(operands.cast, dtype=remedy.dtype)
        return self._call_with(change, "cast to {new} before the call", finding, event)

    def _draw_elsewhere(self, remedy: remedies.DrawElsewhere, finding: Finding, event: CallRefused) -> bool:
        if remedy.for_host:
            again, where = generators.on_host(event.args, event.kwargs), "on the host, for the sampler"
        else:
            again = self._generators.twin_call(event.args, event.kwargs, str(event.error))
            where = "with a generator of the same seed on the device"
        if again is None:
            return False
        event.again = again
        event.settle = lambda good: self._tell(finding, f"drawn {where}", "", "", 0, None) if good else None
        return True

    def _call_with(
        self, make: Callable[[Any, Any], Change | None], what: str, finding: Finding, event: CallRefused
    ) -> bool:
        change = make(event.args, event.kwargs)
        if change is None or not change.replaced:
            return False
        names = [_expression_of(old, event) for old, _ in change.replaced]
        code = event.frame.f_code
        event.again = (change.args, change.kwargs)
        event.settle = self._settling(change, names, event.frame, what, finding)

        def repeat(args: Any, kwargs: Any, frame: FrameType) -> tuple[Again, Settle] | None:
            later = make(args, kwargs) if not is_allowed(finding.rule) else None
            where = next((outer for outer in outward(frame) if outer.f_code is code), None)
            if later is None or len(later.replaced) != len(names) or where is None:
                return None
            settle = self._settling(later, names, where, what, finding, is_repeated=True)
            return (later.args, later.kwargs), settle

        event.repeat = repeat
        return True

    def _settling(
        self,
        change: Change,
        names: Sequence[str | None],
        frame: FrameType,
        what: str,
        finding: Finding,
        is_repeated: bool = False,
    ) -> Settle:
        """What is to be done once the call has succeeded: bind variables, count, tell."""

        def settle(succeeded: bool) -> None:
            if not succeeded:
                return
            old, new = change.replaced[0]
            is_cast = old.dtype != new.dtype
            before, after = (_short(old), _short(new)) if is_cast else (str(old.device), str(new.device))
            undo = variables.rebind_all(names, frame, change.replaced)
            done = "its variable now holds it " + ("as {new}" if is_cast else "on {new}") if undo else what
            if is_repeated:
                self._report.add(dataclasses.replace(finding, count=1))
            self._tell(finding, done.format(new=after), before, after, change.nbytes, undo, replaces=True)

        return settle

    def _move_module(self, remedy: remedies.MoveModule, finding: Finding, event: CallRefused) -> bool:
        whole = remedy.root if remedy.root is not None and modules.is_all_on_host(remedy.root) else remedy.module
        return self._call_after(modules.move_module(whole, remedy.home), str(remedy.home), finding, event)

    def _move_strays(self, remedy: remedies.MoveStrays, finding: Finding, event: CallRefused) -> bool:
        moved = modules.move_strays(remedy.module, remedy.attribute, remedy.home)
        return self._call_after(moved, str(remedy.home), finding, event)

    def _call_after(self, moved: Moved | None, home: str, finding: Finding, event: CallRefused) -> bool:
        if moved is None:
            return False
        args, kwargs = operands.replaced_in(
            (event.args, dict(event.kwargs)), lambda tensor: moved.new.get(id(tensor), tensor)
        )
        event.again = (args, kwargs)
        self._tell(finding, f"moved to {home}, once", moved.old, home, moved.nbytes, moved.undo)
        return True

    # Remedies at other moments

    def _move_state(self, remedy: remedies.MoveState, finding: Finding, event: Event) -> bool:
        return self._mended(optimizers.move_state(remedy.optimizer), finding)

    def _rebind(self, remedy: remedies.Rebind, finding: Finding, event: Event) -> bool:
        return self._mended(optimizers.rebind(remedy.optimizer, remedy.pairs), finding)

    def _take_over(self, remedy: remedies.TakeOver, finding: Finding, event: Event) -> bool:
        return self._mended(optimizers.take_over(remedy.optimizer, remedy.live), finding)

    def _mended(self, done: optimizers.Mended | None, finding: Finding) -> bool:
        if done is None:
            return False
        self._tell(finding, done.what, done.old, done.new, done.nbytes, done.undo)
        return True

    def _step(self) -> int | None:
        rule = next(iter(self._rules.values()), None)
        steps = rule.context.steps if rule is not None else None
        return steps.index if steps is not None and steps.training else None

    def _tell(
        self, finding: Finding, what: str, old: str, new: str, nbytes: int, undo: Undo | None, replaces: bool = False
    ) -> None:
        """Note a repair; announce it the first time, and once more where it costs a copy again and again."""
        made = Repair(finding.rule, _name_of(finding), what, finding.site, old, new, undo=undo, replaces=replaces)
        repair = self._report.kept_repairs.take(made)
        repair.again(nbytes, self._step())
        self._report.price(finding, (("repairs", repair.count), ("repair_bytes", repair.nbytes)))
        if repair is made:
            log.info("%s repaired %s at %s: %s (%s -> %s)", finding.rule, repair.name, finding.site, what, old, new)
            size = f", {size_text(nbytes)}" if nbytes else ""
            more = f"\n  repaired: {repair.name}: {what}{size}"
            self._softly.tell(finding, more + ("; report.undo() takes it back" if undo is not None else ""))
        elif repair.copies == _COSTLY and not repair.is_lasting and finding.severity is not Severity.ADVICE:
            self._softly.tell(finding, f"\n  the repair costs a copy each time: {repair.price}")


def _name_of(finding: Finding) -> str:
    return finding.subjects[0].name if finding.subjects else finding.key or finding.name


def _short(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _expression_of(tensor: Any, event: CallRefused) -> str | None:
    """The user's words for an operand."""
    return next((operand.expression for operand in event.operands if operand.tensor is tensor), None)
