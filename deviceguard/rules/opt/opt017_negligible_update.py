"""OPT017: updates so small against the weights that the model hardly trains."""

from __future__ import annotations

import dataclasses
import statistics
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import OptimizerStepped, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import user_site
from deviceguard.rules.opt.movement import Before, compare, look
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

NEGLIGIBLE = 1e-5
"""Update over weight below which a step hardly counts."""

ENOUGH = 8
"""Steps that must have been measured."""


@dataclasses.dataclass(slots=True)
class _Measured:
    """Sizes of the updates of one optimizer: its name, the learning rates it had, and the ratios measured."""

    subject: Subject
    site: Site | None = None
    before: Before | None = None
    rates: set[float] = dataclasses.field(default_factory=set)
    ratios: list[float] = dataclasses.field(default_factory=list)
    over: bool = False


class NegligibleUpdate(Rule):
    """Over many steps the update is a hundred-thousandth of the weights or less: the learning rate is too small.

    What it does:
        On examined steps it measures the size of the update against that of the weights, and takes the median.

    Why it hurts:
        The loss curve is flat, and one looks for the mistake in the model.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-8)
        for _ in range(12):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).mean().backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for _ in range(12):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).mean().backward()
            optimizer.step()

    When it stays silent:
        Wherever a schedule sets the rate (warm-up, decay), and when nothing changes at all (OPT016).

    Repair:
        None by itself.

    References:
        https://github.com/kyegomez/SingLoRA/issues/6
    """

    code: ClassVar[str] = "OPT017"
    name: ClassVar[str] = "negligible-update"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._measured: weakref.WeakKeyDictionary[Optimizer, _Measured] = weakref.WeakKeyDictionary()
        self._kept: list[_Measured] = []

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> None:
        """Read before the step."""
        known = self._measured.get(event.optimizer)
        if not self.context.steps.examined or event.with_closure or (known is not None and known.over):
            return
        if known is None:
            known = self._measured[event.optimizer] = _Measured(self.context.subjects.optimizer(event.optimizer))
            self._kept = [*self._kept[-100:], known]
        known.rates |= {float(group.get("lr", 0.0)) for group in event.optimizer.param_groups}
        scheduled = any("initial_lr" in group for group in event.optimizer.param_groups)
        known.over = scheduled or len(known.rates) > len(event.optimizer.param_groups)
        known.before = None if known.over else look(event.optimizer)

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Read after it."""
        known = self._measured.get(event.optimizer)
        if known is None or known.over or known.before is None:
            return
        movement, known.before = compare(event.optimizer, known.before), None
        if movement is not None and movement.moved:
            known.ratios.append(movement.ratio)
            known.site = user_site()
            known.over = movement.ratio > 100 * NEGLIGIBLE

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Judge over all that was measured."""
        for known in self._kept:
            if known.over or len(known.ratios) < ENOUGH or statistics.median(known.ratios) >= NEGLIGIBLE:
                continue
            ratio, rate = statistics.median(known.ratios), max(known.rates)
            yield self.finding(
                f"A step of {known.subject.name} changes the weights by {ratio:.0e} of their size: with lr={rate:g} "
                "the model hardly trains.",
                "raise the learning rate, or scale the loss the other way",
                [known.subject],
                site=known.site,
                count=len(known.ratios),
                key=known.subject.name,
                cost=[("update_ratio", ratio)],
            )
