"""OPT007: gradient clipping that received nothing to clip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import GradientsClipped, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import gradient_of
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import user_frame, user_site
from deviceguard.rules.opt.clip_sites import ClipSite, ClipSites
from deviceguard.rules.rule import Rule, on

ENOUGH = 3
"""Calls at one line, all without a gradient, after which it is reported at once; two are enough at the end of a run."""


class ClipNothing(Rule):
    """Gradient clipping receives no parameter, or only parameters without gradients.

    What it does:
        Looks at what ``clip_grad_norm_`` and ``clip_grad_value_`` are given. An iterator that has been used up is
        reported at once. Parameters without any gradient are reported when that is so at every call of the line while
        optimizers step on gradients.

    Why it hurts:
        The gradients explode although the script clips them.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        params = filter(lambda p: p.requires_grad, net.parameters())
        optimizer = torch.optim.SGD(params, lr=0.1)
        net(torch.ones(8, 4, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        params = list(filter(lambda p: p.requires_grad, net.parameters()))
        optimizer = torch.optim.SGD(params, lr=0.1)
        net(torch.ones(8, 4, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    When it stays silent:
        When at some call of the line there is a gradient, and when nothing is trained.

    Repair:
        None by itself.

    References:
        https://github.com/pytorch/pytorch/issues/148259
        https://github.com/PixArt-alpha/PixArt-alpha/pull/160
    """

    code: ClassVar[str] = "OPT007"
    name: ClassVar[str] = "clip-nothing"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._sites = ClipSites()
        self._pending: ClipSite | None = None

    @on(GradientsClipped)
    def clipped(self, event: GradientsClipped) -> Iterator[Finding]:
        """What is there to clip?"""
        if event.exhausted:
            yield self._exhausted(event)
            return
        known = self._sites.at(user_site(), event.function)
        if known is None or known.calls > known.bad:
            return
        known.calls += 1
        self._pending = None
        if event.parameters and not any(gradient_of(p) is not None for p in event.parameters):
            self._pending = known
            if not known.subjects:
                known.subjects = tuple(self.context.subjects.parameter(p) for p in list(event.parameters)[:3])

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """A step that has gradients, after a clipping call that had none."""
        known, self._pending = self._pending, None
        if known is None or not any(gradient_of(p) is not None for p in parameters_of(event.optimizer)):
            return
        known.bad += 1
        if known.bad == known.calls >= ENOUGH and not known.told:
            known.told = True
            yield self._empty(known)

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Short runs."""
        for known in self._sites.values():
            if known.bad == known.calls >= 2 and not known.told:
                yield self._empty(known)

    def _exhausted(self, event: GradientsClipped) -> Finding:
        frame = user_frame()
        call = running_call(frame) if frame is not None else None
        name = (call.argument(0, "parameters") if call else None) or "the iterator"
        return self.finding(
            f"{event.function} clips nothing: {name} is an iterator that has been used up, by an optimizer, a loop or "
            "an earlier call.",
            f"keep a list: {name} = list(...), or pass model.parameters() anew",
            [],
            key=name,
        )

    def _empty(self, known: ClipSite) -> Finding:
        name = known.subjects[0].name if known.subjects else "they"
        return self.finding(
            f"{known.function} clips nothing: none of the parameters it is given ({name}, ...) ever has a gradient, "
            "while the optimizer steps on others.",
            "pass the parameters of the model that is trained, after backward()",
            known.subjects,
            site=known.site,
            count=known.bad,
        )
