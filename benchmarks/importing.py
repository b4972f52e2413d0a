"""What ``import deviceguard`` takes, beside an interpreter that imports nothing.

    python benchmarks/importing.py

Milliseconds inside the interpreter, the least of several fresh ones taken in turn. The first budget is 50 ms without
torch; the second is what the start-up entry point adds to ``import torch`` while ``DEVICEGUARD`` is unset: 2 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

_TIMED = "import time; a = time.perf_counter(); {work}; print(1000 * (time.perf_counter() - a))"
WORK = {
    "import deviceguard": ({}, "import deviceguard"),
    "import torch": ({}, "import torch"),
    "import torch, no entry points": ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "import torch"),
}
ROUNDS = 7


def milliseconds(work: str, variables: dict[str, str]) -> float:
    """Time one piece of work in a fresh interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEVICEGUARD")}
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(work=work)],
        env={**kept, **variables},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def main() -> None:
    """Run and print."""
    times: dict[str, list[float]] = {name: [] for name in WORK}
    for _ in range(ROUNDS):
        for name, (variables, work) in WORK.items():
            times[name].append(milliseconds(work, variables))
    for name, these in times.items():
        print(f"{name:32}{min(these):10.1f} ms least{statistics.median(these):10.1f} ms median")


if __name__ == "__main__":
    main()
