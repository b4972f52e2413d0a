"""PIP007: too many too small device calls in a step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import ModuleReturned, RunEnded, StepEnded
from deviceguard.findings import Finding, Severity, Site
from deviceguard.naming.frames import spot_of, user_frame, with_source
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_MANY = 100
_SMALL = 16_384
_LAUNCH = 5e-6
"""Seconds the host needs to launch one operation, for the message."""


class LaunchBound(Rule):
    """A step consists of very many very small device operations.

    What it does:
        Counts, in the steps that are examined in full, the layers that run in a step and the size of what they return.
        It speaks when there are more than a hundred and half of them return only a few thousand numbers.

    Why it hurts:
        Launching an operation takes the host some microseconds, however small it is. Where the device needs less than
        that, it waits for the host, and a faster device changes nothing.

    Example:
        cell = torch.nn.GRUCell(16, 16).to("cuda")
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)


        class Unrolled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = cell

            def forward(self, x):
                hidden = x[0]
                for step in range(120):
                    hidden = self.cell(x[step], hidden)
                return hidden


        net = Unrolled()
        for step in range(6):
            loss = net(torch.randn(120, 4, 16, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.GRU(16, 16).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(6):
            loss = net(torch.randn(120, 4, 16, device="cuda"))[1].pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For few layers, for large ones, and on the host.

    Repair:
        None.

    References:
        https://github.com/pytorch/benchmark/pull/706
        https://github.com/soran-ghaderi/torchebm/issues/207
    """

    code: ClassVar[str] = "PIP007"
    name: ClassVar[str] = "launch-bound"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sizes: list[int] = []
        self._steps: list[tuple[int, float]] = []
        self._site: Site | None = None

    @on(ModuleReturned)
    def returned(self, event: ModuleReturned) -> None:
        """A layer returned."""
        output = event.output
        is_leaf = not event.module._modules and hasattr(output, "numel")
        if is_leaf and self.context.steps.examined and is_accelerator(output.device):
            self._sizes.append(output.numel())
        elif event.is_root and self._site is None:
            self._site = spot_of(user_frame())

    @on(StepEnded)
    def step_ended(self, event: StepEnded) -> None:
        """The sizes of one step."""
        if event.training and self._sizes:
            self._steps.append((len(self._sizes), statistics.median(self._sizes)))
        self._sizes = []

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """What the examined steps say."""
        if len(self._steps) < self.context.settings.min_steps - 1:
            return
        calls = statistics.median(calls for calls, _ in self._steps)
        size = statistics.median(size for _, size in self._steps)
        if calls < _MANY or size > _SMALL:
            return
        yield self.finding(
            f"a step runs {calls:.0f} layers whose results are small ({size:,.0f} numbers in the middle): launching "
            f"them takes at least {1e3 * calls * _LAUNCH:.1f} ms, more than the device needs to compute them.",
            "larger batches, fused layers (nn.GRU instead of a loop over GRUCell), torch.compile, or a CUDA graph",
            site=with_source(self._site),
            count=len(self._steps),
            cost=[
                ("calls", float(calls)),
                ("elements", float(size)),
                ("estimated_seconds", self.context.steps.index * calls * _LAUNCH),
            ],
        )
