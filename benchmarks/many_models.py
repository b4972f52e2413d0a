"""What the guard costs and keeps where models are many: a sweep, an ensemble, a population.

    python benchmarks/many_models.py step          # 10 models, 5 optimizers, 100,000 parameters: step and construction
    python benchmarks/many_models.py leak          # 100,000 steps with a new model every 100: what is left behind

``step`` compares processor time with and without the guard (``watch``), in turns in one process. Both sides work on
objects of their own. The first steps, through which the guard does not sleep, are not timed; the second ratio compares
sums, so that steps that are looked at now and then count too (with ``--steps`` over a few hundred). ``leak`` prints, at
ten points of the run, the objects that the garbage collector knows, the memory blocks of Python, what the process
holds, and the entries of the ledger. The columns should stand still after the first rows.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import deviceguard
from deviceguard.hub import HUB


class Scalars(nn.Module):
    """A model of very many very small parameters."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.values = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(parameters))

    def forward(self) -> torch.Tensor:
        """One number that depends on all of them."""
        return torch.cat(list(self.values)).square().mean()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["step", "leak"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--warmup", type=int, default=115, help="turns of all five optimizers before the clock starts")
    parser.add_argument("--steps", type=int, help="steps of a round (20), or of the whole leak run (100,000)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", deviceguard.DeviceGuardWarning)
    if given.what == "step":
        cost(given.rounds, given.parameters, given.warmup, given.steps or 20)
    else:
        leak(given.steps or 100_000)


def cost(rounds: int, parameters: int, warmup: int, steps: int) -> None:
    """Print the ratios of construction and of a step."""
    made, stepped, sums = [], [], []
    for turn in range(rounds):
        plain, guarded = (
            (_round(guard, parameters, warmup, steps) for guard in (False, True))
            if turn % 2
            else _swapped(parameters, warmup, steps)
        )
        made.append(guarded[0] / plain[0])
        stepped.append(statistics.median(guarded[1]) / statistics.median(plain[1]))
        sums.append(sum(guarded[1]) / sum(plain[1]))
        print(
            f"round {turn + 1}: construction {plain[0]:.2f} s -> {guarded[0]:.2f} s ({made[-1]:.2f}x), "
            f"median step {1000 * statistics.median(plain[1]):.1f} ms -> {1000 * statistics.median(guarded[1]):.1f} ms "
            f"({stepped[-1]:.3f}x), with samples {sums[-1]:.3f}x",
            flush=True,
        )
    print(
        f"median: construction {statistics.median(made):.2f}x, step {statistics.median(stepped):.3f}x, "
        f"with samples {statistics.median(sums):.3f}x"
    )


def _swapped(parameters: int, warmup: int, steps: int) -> tuple[tuple[float, list[float]], tuple[float, list[float]]]:
    guarded = _round(True, parameters, warmup, steps)
    return _round(False, parameters, warmup, steps), guarded


def _round(guard: bool, parameters: int, warmup: int, steps: int) -> tuple[float, list[float]]:
    """Seconds of the construction, and of each step of all five optimizers."""
    with deviceguard.watch() if guard else contextlib.nullcontext():
        start = time.process_time()
        models = [Scalars(parameters // 10) for _ in range(10)]
        construction = time.process_time() - start
        pairs = [models[i : i + 2] for i in range(0, 10, 2)]
        optimizers = [torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.01) for a, b in pairs]

        def step() -> None:
            for (one, other), optimizer in zip(pairs, optimizers, strict=True):
                optimizer.zero_grad()
                (one() + other()).backward()
                optimizer.step()

        for _ in range(warmup):  # a turn of all five counts as one step, and the first 100 are looked at
            step()
        gc.collect()
        gc.disable()
        try:
            return construction, [_seconds(step) for _ in range(steps)]
        finally:
            gc.enable()


def _seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def leak(steps: int) -> None:
    """Print what is there at ten points of a run with a new model every 100 steps."""
    print(f"{'steps':>8} {'objects':>9} {'blocks':>9} {'process MiB':>12} {'ledger':>7}")
    with deviceguard.watch():
        for done in range(0, steps, 100):
            _train(100)
            if (done + 100) % max(100, steps // 10) == 0:
                _print_row(done + 100)


def _train(steps: int) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(8, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()


def _print_row(steps: int) -> None:
    gc.collect()
    memory = pathlib.Path("/proc/self/statm")
    pages = int(memory.read_text().split()[1]) if memory.exists() else 0
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    print(
        f"{steps:>8} {len(gc.get_objects()):>9} {sys.getallocatedblocks():>9} {resident:>12.1f} {_entries():>7}",
        flush=True,
    )


def _entries() -> int:
    """Entries of all tables of the ledger."""
    ledger: Any = HUB.sessions[0].engine.ledger
    tables = (ledger._parameters, ledger._modules, ledger._models, ledger._optimizers, ledger._trains, ledger._states)
    return sum(len(table) for table in tables)


if __name__ == "__main__":
    main()
