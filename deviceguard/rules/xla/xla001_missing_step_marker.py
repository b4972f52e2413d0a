"""XLA001: training steps that no step marker ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import backend_of
from deviceguard.backends.tracing import Tracing
from deviceguard.events import OptimizerStepped, OptimizerStepping, RunEnded, StepMarked
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import is_user_code, outward, spot_of, user_frame
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer

_AT_ONCE = 64
"""So many steps without a marker are an error while the run goes on: no sensible loop makes one graph of more."""
_AT_END = 4
"""So many are worth a word at the end of a short run that never had a marker: it did no harm yet."""


class MissingStepMarker(Rule):
    """Optimizer steps on a device that collects operations into graphs, with no step marker between them.

    What it does:
        Counts the optimizer's steps since the last step marker. At 64 of them it reports an error; a shorter run that
        ends without a single marker gets an advice. Markers are, in whatever form: ``torch_xla.sync()``,
        ``torch_xla.step()``, ``torch_xla.compile``, ``xm.mark_step()``, ``xm.optimizer_step(barrier=True)``, or a
        loader wrapped in ``MpDeviceLoader``. ``xm.optimizer_step`` without ``barrier=True`` marks nothing.

    Why it hurts:
        Nothing is executed. The graph grows by one step at a time until something asks for a value; then it is
        compiled as a whole, which takes minutes to hours, and is never used a second time.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x = torch.ones(4, 8, device=device)
        for step in range(6):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    Use instead:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        x = torch.ones(4, 8, device=device)
        for step in range(6):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            torch_xla.sync()

    When it stays silent:
        When a marker comes every few steps (gradient accumulation, ``batches_per_execution``, several optimizers that
        take turns), in eager mode, and for parameters on any other kind of device.

    Repair:
        None: where a step ends is for the program to say.

    References:
        https://github.com/pytorch/xla/pull/1059
        https://github.com/pytorch/xla/issues/7596
        https://github.com/pytorch/xla/issues/3043
    """

    code: ClassVar[str] = "XLA001"
    name: ClassVar[str] = "missing-step-marker"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    _unmarked = 0
    _last_step = -1
    _marked = False
    _site: Site | None = None
    _subject: Subject | None = None
    _tracing: Tracing | None = None
    _through = False

    @on(StepMarked)
    def marked(self, event: StepMarked) -> None:
        """A step marker."""
        self._marked = self._marked or self._unmarked > 0
        self._unmarked = 0

    @on(OptimizerStepping)
    def about_to_step(self, event: OptimizerStepping) -> Iterator[Finding]:
        """The next step begins and the last ones were never marked."""
        if self._unmarked >= _AT_ONCE and self._tracing is not None and not self._tracing.runs_at_once():
            yield self._found()

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """One more step without a marker, if it was on such a device."""
        tracing = _tracing_of(event.optimizer)
        if tracing is None or self._last_step == self.context.steps.index:
            return
        self._last_step = self.context.steps.index
        self._unmarked += 1
        if self._site is None:
            frame = user_frame()
            self._tracing, self._site = tracing, spot_of(frame)
            self._subject = self.context.subjects.optimizer(event.optimizer)
            self._through = _goes_through(tracing.package)

    @on(RunEnded)
    def ended(self, event: RunEnded) -> Iterator[Finding]:
        """A short run that never had a marker."""
        if event.error is not None or self._marked or self._unmarked < _AT_END or self._tracing is None:
            return
        if not self._tracing.runs_at_once():
            yield self._found(Severity.ADVICE)

    def _found(self, severity: Severity = Severity.ERROR) -> Finding:
        assert self._tracing is not None
        assert self._subject is not None
        steps, self._unmarked = self._unmarked, 0
        call = self._tracing.sync_call
        cause = " xm.optimizer_step() without barrier=True marks no step." if self._through else ""
        return self.finding(
            f"{self._subject.name} has stepped {steps} times with no step marker in between: one graph of all of them "
            f"grows until a value is read, and is compiled then as a whole.{cause}",
            self._fix(call),
            [self._subject],
            site=self._site,
            severity=severity,
            count=steps,
        )

    def _fix(self, call: str) -> str:
        if self._through:
            return f"xm.optimizer_step({self._subject.name if self._subject else 'optimizer'}, barrier=True)"
        return f"call {call} after the optimizer's step, at the end of each pass through the loop"


def _tracing_of(optimizer: Optimizer) -> Tracing | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            backend = backend_of(parameter.device)
            return backend.tracing if backend is not None else None
    return None


def _goes_through(package: str) -> bool:
    """True where the step is taken by a function of the backend's package, ``xm.optimizer_step``."""
    for frame in outward(sys._getframe(1)):
        if is_user_code(frame):
            return False
        if frame.f_code.co_name == "optimizer_step" and package in frame.f_code.co_filename:
            return True
    return False
