"""Calls with operands on two devices, and what becomes of each: the same code for a real device and a simulated one.

Run as a program, because a process has either real devices or simulated ones: ``two_devices.py rows OUT`` makes the
calls of ``cuda_truth.json``, ``two_devices.py sweep OUT`` those of PyTorch's own catalogue, and writes to the file OUT,
as JSON, what became of each. A third argument such as ``cuda:2`` says which devices to simulate; with none, or an empty
one, they are real. Further arguments are operations to leave out. ``rows:xla`` makes the calls on an XLA device.
"""

from __future__ import annotations

import contextlib
import copy  # noqa: F401 - used by the recorded calls
import importlib
import json
import os
import pickle  # noqa: F401 - used by the recorded calls
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401 - used by the recorded calls
import torch
import torch.nn.functional as F  # noqa: F401 - used by the recorded calls
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

ROWS: list[dict[str, str]] = json.loads((Path(__file__).parent / "cuda_truth.json").read_text())
DEVICE, SECOND = "cuda:0", "cuda:1"
#: Rows where the simulation differs, and why.
DIFFERENCES = {
    "inplace h0": "the shape is checked before the device there",
    "set_": "an empty tensor may take any storage here, so that loading works",
    "isinst2": "torch.FloatTensor is PyTorch's own type object",
    "bilinear": "the host has a kernel of its own where the device multiplies matrices",
    "cos": "which of the two operands is named first differs",
    "sparse": "sparse kernels have their own wrappers",
    "sparsemm": "sparse kernels have their own wrappers",
}


def c(*size: int) -> torch.Tensor:
    return torch.zeros(size, device=DEVICE)


def h(*size: int) -> torch.Tensor:
    return torch.zeros(size)


def d1(*size: int) -> torch.Tensor:
    return torch.zeros(size, device=SECOND)


def si(x: torch.Tensor, index: Any, value: Any) -> torch.device:
    x[index] = value
    return x.device


def sg(p: torch.Tensor, gradient: torch.Tensor) -> None:
    p.grad = gradient


def sd(p: torch.Tensor, data: torch.Tensor) -> torch.device:
    p.data = data
    return p.device


class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.ones(2)


def rows() -> list[dict[str, str]]:
    """The rows that this machine has devices enough for; those about no CUDA API for a device of another type."""
    if not DEVICE.startswith("cuda"):
        return [row for row in ROWS if "cuda" not in row["call"].lower() and "d1(" not in row["call"]]
    if torch.cuda.device_count() > 1:
        return ROWS
    return [row for row in ROWS if "d1(" not in row["call"] and SECOND not in row["call"]]


def expected_of(row: dict[str, str]) -> str:
    """What the file has recorded for a row."""
    return row["value"] if "value" in row else f"{row['error']}: {row['text']}"


def outcome(call: str) -> str:
    """The result of a recorded call, or the class and text of its error."""
    torch.backends.cudnn.enabled = "nn.LSTM(" not in call and "nn.GRU(" not in call and "nn.RNN(" not in call
    return attempt(lambda: repr(eval(call, globals()))[:150].replace("\n", " "))


def attempt(call: Callable[[], str]) -> str:
    try:
        return call()
    except Exception as error:
        text = str(error).partition(" If you are a Facebook employee")[0]  # a list of backends follows
        return f"{type(error).__name__}: {text[:330]}"


def sweep(left_out: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """For each operation, with each of its operands alone on another device than the rest: what becomes of the call."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.name in left_out:
            continue
        for number, sample in enumerate(samples(op)):
            yield from placements(op, number, sample)


def refused(found: str) -> bool:
    """Whether what became of a call is an error."""
    return re.match(r"\w*(Error|Exception): ", found) is not None


def samples(op: Any) -> list[Any]:
    """The first two samples with several tensors."""
    dtype = next(
        (kind for kind in (torch.float32, torch.int64, torch.bool, torch.complex64) if kind in op.dtypes), None
    )
    if dtype is None:
        return []
    torch.manual_seed(0)
    chosen: list[Any] = []
    try:
        for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
            count = sum(
                isinstance(leaf, torch.Tensor) for leaf in tree_leaves((sample.input, sample.args, sample.kwargs))
            )
            if count > 1:
                chosen.append(sample)
            if len(chosen) == 2:
                break
    except Exception:  # noqa: S110 - a sample that this build cannot make
        pass
    return chosen


def placements(op: Any, number: int, sample: Any) -> Iterator[tuple[str, str]]:
    """A sample with everything on the device, with each operand alone elsewhere, and with ``out`` alone elsewhere."""
    name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(function: Any, rest: str, odd: str | None, chosen: int) -> str:
        def moved(place: int, leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return leaf.detach().clone().to(odd if place == chosen and odd is not None else rest)
            return rest if leaf == "cpu" or leaf == torch.device("cpu") else leaf

        placed = [moved(place, leaf) for place, leaf in enumerate(leaves)]
        given, args, kwargs = tree_unflatten(placed, spec)
        results = function(given, *args, **kwargs)
        return " ".join(str(leaf.device) for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor))

    functions = {"": op.op} | ({" in place": op.inplace_variant} if op.inplace_variant else {})
    for kind, function in functions.items():
        yield f"{name}{kind} {number}: all on {DEVICE}", attempt(lambda: call(function, DEVICE, None, -1))  # noqa: B023
        two = [(DEVICE, SECOND)] if torch.cuda.device_count() > 1 else []
        for rest, odd in ((DEVICE, "cpu"), ("cpu", DEVICE), *two):
            for chosen in positions[:4]:
                key = f"{name}{kind} {number}: {chosen} on {odd}, rest on {rest}"
                yield key, attempt(lambda: call(function, rest, odd, chosen))  # noqa: B023
    if op.supports_out:
        for rest, odd in ((DEVICE, "cpu"), ("cpu", DEVICE)):

            def with_out(*args: Any, **kwargs: Any) -> Any:
                return op.op(*args, **kwargs, out=torch.empty(0, device=odd))  # noqa: B023

            key = f"{name} {number}: out on {odd}, rest on {rest}"
            yield key, attempt(lambda: call(with_out, rest, None, -1))  # noqa: B023


def main(what: str, out: str, spec: str = "", *left_out: str) -> None:
    """Make the calls and write what became of them."""
    global DEVICE
    warnings.simplefilter("ignore")
    what, _, other = what.partition(":")
    if other:
        DEVICE = f"{other}:0"
        if not spec:
            importlib.import_module(f"torch_{other}")
    context: Any = contextlib.nullcontext()
    if spec:
        torch.cuda.is_available()  # from here on it is settled which real devices there are
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        from deviceguard.simulate import simulate

        context = simulate(spec)
    with context:
        found = {row["name"]: outcome(row["call"]) for row in rows()} if what == "rows" else dict(sweep(left_out))
    Path(out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # a real build whose kernels do nothing may abort at its end, when its work is done
