"""OPT008: gradients that are clipped after the step has used them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import BackwardEnded, GradientsClipped, ModuleCalled, OptimizerStepped, RunEnded
from deviceguard.findings import Finding, Severity, Site
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import gradient_of
from deviceguard.naming.frames import user_site
from deviceguard.rules.opt.clip_sites import ClipSite, ClipSites
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

ENOUGH = 2
"""Calls at one line, all after the step, after which it is reported."""


class ClipAfterStep(Rule):
    """Gradients are clipped after ``step()`` has used them.

    What it does:
        Notes which optimizers have stepped since the last backward pass. A clipping call on gradients of their
        parameters comes too late; when that is so each time at a line, it is reported.

    Why it hurts:
        The step has used the unclipped gradients, and the clipped ones are thrown away.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    When it stays silent:
        For an infinite limit, which only measures the norm, and when the line also clips before steps.

    Repair:
        None by itself.

    References:
        https://github.com/VGraphRNN/VGRNN/issues/4
        https://github.com/awslabs/graphstorm/issues/1366
        https://github.com/Lightning-AI/pytorch-lightning/pull/10248
    """

    code: ClassVar[str] = "OPT008"
    name: ClassVar[str] = "clip-after-step"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._sites = ClipSites()
        self._used: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._ran_since = False
        self._remote: set[Site | None] = set()

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Its gradients are used."""
        self._used.add(event.optimizer)
        self._ran_since = False

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """The program has gone on to something else."""
        self._ran_since = True

    @on(BackwardEnded)
    def backward(self, event: BackwardEnded) -> None:
        """New gradients."""
        if event.accumulates and self._used:
            self._used.clear()

    @on(GradientsClipped)
    def clipped(self, event: GradientsClipped) -> Iterator[Finding]:
        """In time, or too late?"""
        if math.isinf(event.limit):
            return
        known = self._sites.at(user_site(), event.function)
        if known is None or known.calls > known.bad:
            return
        known.calls += 1
        given = {id(p) for p in event.parameters if gradient_of(p) is not None}
        late = [o for o in self._used if any(id(p) in given for p in parameters_of(o))] if given else []
        if not late:
            return
        known.bad += 1
        if self._ran_since:
            self._remote.add(known.site)
        known.subjects = known.subjects or (self.context.subjects.optimizer(late[0]),)
        if known.bad >= ENOUGH and not known.told:
            known.told = True
            yield self._finding(known)

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """A run of one step, in which the clipping follows the step at once."""
        for known in self._sites.values():
            if known.bad == known.calls == 1 and not known.told and known.site not in self._remote:
                yield self._finding(known)

    def _finding(self, known: ClipSite) -> Finding:
        name = known.subjects[0].name
        return self.finding(
            f"{known.function} comes after {name}.step(): the step has used the unclipped gradients.",
            f"move the clipping between backward() and {name}.step()",
            known.subjects,
            site=known.site,
            count=known.bad,
        )
