"""What the guard costs: the same work without it and under each mode, interleaved in one process.

    python benchmarks/overhead.py                  # all workloads, 7 rounds
    python benchmarks/overhead.py --rounds 15 --only mlp --json figures.json

In a round every mode runs once, in an order that changes from round to round, each on a model of its own made under
that mode. The first steps, which are examined in full, are not timed; ``watch`` is timed in the steps it looks at and
between its samples, where a long run spends its time. A ratio compares a mode's median step with the
median step without the guard of the same round; the table gives the median ratio over the rounds and the range of its
middle half. The last column compares sums instead of medians, so that steps examined now and then count too.
Time is the processor time of this process, which other programs disturb least; --wall takes the clock on the wall.
No budget is enforced here.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from workloads import WORKLOADS, Workload

import deviceguard


class EmptyMode(TorchFunctionMode):
    """The least a function mode can do; what the guard's modes are compared with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def simulated_and_watched() -> Any:
    """A simulated device with the guard above it, as the first steps of ``deviceguard run --simulate`` have it."""
    with deviceguard.simulate("cuda"), deviceguard.watch(capture_steps=10**9):
        yield


MODES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "off": (contextlib.nullcontext, "cpu"),
    "empty function mode": (EmptyMode, "cpu"),
    "watch, looking": (lambda: deviceguard.watch(capture_steps=10**9), "cpu"),
    "watch, between samples": (lambda: deviceguard.watch(capture_steps=0), "cpu"),
    "strict": (deviceguard.strict, "cpu"),
    "simulate": (lambda: deviceguard.simulate("cuda"), "cuda"),
    "simulate + watch": (simulated_and_watched, "cuda"),
}

Times = dict[str, list[list[float]]]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40, help="timed steps of each mode in a round")
    parser.add_argument("--warmup", type=int, default=15, help="steps before that; the first 10 are examined in full")
    parser.add_argument("--wall", action="store_true", help="time by the clock on the wall")
    parser.add_argument("--only", help="comma-separated names of workloads")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", deviceguard.DeviceGuardWarning)
    wanted = [w for w in WORKLOADS if given.only is None or w.name in given.only.split(",")]
    figures = {}
    for workload in wanted:
        times = measure(workload, given)
        figures[workload.name] = {mode: figures_of(times, mode) for mode in MODES}
        print(table(workload, figures[workload.name]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"torch": torch.__version__, "figures": figures}, indent=1) + "\n")


def measure(workload: Workload, given: argparse.Namespace) -> Times:
    """Seconds of each timed step, by mode and round."""
    clock = time.perf_counter if given.wall else time.process_time
    times: Times = {mode: [] for mode in MODES}
    names = list(MODES)
    for turn in range(given.rounds):
        first = turn % len(names)
        for mode in names[first:] + names[:first]:
            times[mode].append(timed(workload, mode, given.warmup, given.steps, clock))
    return times


def timed(workload: Workload, mode: str, warmup: int, steps: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each step under one mode."""
    enter, device = MODES[mode]
    torch.manual_seed(0)
    with enter():
        step = workload.make(device)
        for _ in range(warmup):
            step()
        gc.collect()
        gc.disable()
        try:
            return [_seconds(step, clock) for _ in range(steps)]
        finally:
            gc.enable()


def _seconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def figures_of(times: Times, mode: str) -> dict[str, float]:
    """The numbers of one row."""
    rounds = list(zip(times[mode], times["off"], strict=True))
    ratios = sorted(statistics.median(these) / statistics.median(plain) for these, plain in rounds)
    sums = [sum(these) / sum(plain) for these, plain in rounds]
    return {
        "milliseconds": 1000 * statistics.median(seconds for these in times[mode] for seconds in these),
        "ratio": statistics.median(ratios),
        "low": ratios[len(ratios) // 4],
        "high": ratios[-1 - len(ratios) // 4],
        "with samples": statistics.median(sums),
    }


def table(workload: Workload, rows: dict[str, dict[str, float]]) -> str:
    """The rows of one workload as text."""
    lines = [
        f"\n{workload.name} ({workload.unit}): {workload.make.__doc__}",
        f"{'':24}{'median ms':>10}{'ratio':>9}{'middle half':>16}{'sums':>9}",
    ]
    for mode, row in rows.items():
        spread = f"{row['low']:.3f}-{row['high']:.3f}"
        lines.append(f"{mode:24}{row['milliseconds']:10.3f}{row['ratio']:9.3f}{spread:>16}{row['with samples']:9.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
