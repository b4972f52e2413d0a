"""PIP009: utilisation, memory and neighbours, read from the device."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends import nvml
from deviceguard.backends.devices import backend_of
from deviceguard.backends.facts import has_matrix_units, peak_memory, total_memory, uuid_of
from deviceguard.events import OptimizerStepped, RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import spot_of, user_frame, with_source
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch

    from deviceguard.context import Context
    from deviceguard.findings import Site

_PERIOD = 5.0
"""Seconds between two looks at the device."""
_MANY_STEPS = 50
_LITTLE_MEMORY = 0.05
_IDLE = 0.4
_SLOW_CLOCK = 0.6
_MOST_LOOKS = 1000


class DeviceUnderused(Rule):
    """The device is mostly idle, mostly empty, shared, throttled, or of an old generation.

    What it does:
        Looks at the device every few seconds through NVML, where ``nvidia-ml-py`` is installed: how busy it is, how
        full, how fast its clock runs, which model it is, and whether other processes run on it. Without NVML it
        compares the memory this process used with what there is.

    Why it hurts:
        An idle device is paid for and not used; a neighbour's load looks like a slow program; memory that stays empty
        is room for larger batches.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(60):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(1600, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        In short runs, on a busy or well filled device, on a simulated one, and where nothing can be read from it.

    Repair:
        None.

    References:
        https://github.com/ultralytics/yolov5/issues/5681
        https://github.com/poier/PreView/issues/5
    """

    code: ClassVar[str] = "PIP009"
    name: ClassVar[str] = "device-underused"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._loads: list[nvml.Load] = []
        self._next = 0.0
        self._steps = 0
        self._device: torch.device | None = None
        self._site: Site | None = None

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """A step; now and then a look at the device."""
        self._steps += 1
        if self._steps == 1:
            first = next((p for group in event.optimizer.param_groups for p in group["params"]), None)
            self._device = first.device if first is not None and _has_figures(first.device) else None
            self._site = spot_of(user_frame())
        if self._device is None or self._steps < 2 or perf_counter() < self._next or len(self._loads) >= _MOST_LOOKS:
            return
        self._next = perf_counter() + _PERIOD
        load = nvml.look(self._device.index or 0, uuid_of(self._device))
        if load is not None:
            self._loads.append(load)
            self.context.times.loads.append(load.utilisation)

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """What the looks say."""
        if self._device is None or self._steps < _MANY_STEPS:
            return
        yield from self._by_load()
        used = peak_memory(self._device)
        share = used / total_memory(self._device) if used is not None else 1.0
        if share < _LITTLE_MEMORY:
            yield self._told(
                f"{self._device} is nearly empty: {used or 0:,} bytes at most, {share:.1%} of its memory, over "
                f"{self._steps} steps.",
                "a larger batch, or several runs beside each other on this device",
                "memory",
                [("memory_share", share)],
            )

    def _by_load(self) -> Iterator[Finding]:
        if not self._loads:
            return
        busy = statistics.median(load.utilisation for load in self._loads)
        others = max(load.others for load in self._loads)
        name = self._loads[0].name
        if others:
            yield self._told(
                f"{self._device} ({name}) is shared with {others} other process(es).",
                "choose a free device (CUDA_VISIBLE_DEVICES), or expect to wait for them",
                "shared",
                [("others", float(others))],
            )
        clock = statistics.median(load.clock for load in self._loads)
        if busy >= _IDLE and clock < _SLOW_CLOCK:
            yield self._told(
                f"{self._device} ({name}) runs at {clock:.0%} of its fastest clock while it is busy: heat or a power "
                "limit throttles it.",
                "see nvidia-smi -q -d PERFORMANCE for the reason",
                "clock",
                [("clock", clock)],
            )
        if self._device is not None and not has_matrix_units(self._device):
            yield self._told(
                f"{self._device} ({name}) is of a generation without matrix units: float16 and bfloat16 are no faster "
                "on it than float32.",
                "expect several times the speed from a newer device, for the same script",
                "model",
            )
        if busy < _IDLE:
            yield self._told(
                f"{self._device} ({name}) was busy for {busy:.0%} of the time, the median of {len(self._loads)} looks.",
                "see the SYN and PIP findings for what it waits for; else a larger batch",
                "idle",
                [("utilisation", busy)],
            )

    def _told(self, message: str, fix: str, key: str, cost: Sequence[tuple[str, float]] = ()) -> Finding:
        return self.finding(message, fix, site=with_source(self._site), key=key, cost=cost)


def _has_figures(device: torch.device) -> bool:
    backend = backend_of(device)
    return backend is not None and backend.has_figures
