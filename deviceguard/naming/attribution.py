"""Whose doing a call is: the user's own line, a library the user handed a tensor to, or a library's own business."""

from __future__ import annotations

import dataclasses
import os
import sys
from types import FrameType

from deviceguard.naming.frames import libraries_between, outward, user_frame

#: Parts of PyTorch whose own reads and transfers are documented, and nothing the caller could leave out.
_OWN_BUSINESS = tuple(
    part.replace("/", os.sep)
    for part in (
        "torch/optim/",
        "torch/amp/",
        "torch/cuda/",
        "torch/utils/data/",
        "torch/utils/checkpoint.py",
        "torch/distributed/",
        "torch/nn/parallel/",
        "torch/nn/utils/rnn.py",
        "torch/nn/init.py",
        "torch/serialization.py",
        "torch/storage.py",
        "torch/testing/",
        "torch/profiler/",
        "torch/jit/",
        "torch/_dynamo/",
        "torch/_inductor/",
        "torch/_functorch/",
        "torch/fx/",
        "torch/export/",
        "torch/onnx/",
    )
)
#: Where PyTorch's own functions are written in Python: a call passes through here and is still the user's.
_FRONT = tuple(
    part.replace("/", os.sep)
    for part in (
        "torch/_tensor.py",
        "torch/_tensor_str.py",
        "torch/overrides.py",
        "torch/functional.py",
        "torch/nn/functional.py",
        "torch/_jit_internal.py",
        "torch/utils/_contextlib.py",
        "torch/utils/_device.py",
    )
)
_CALLERS_CHOICE = ("torch/optim/lr_scheduler.py".replace("/", os.sep),)
#: Functions there that the program calls for the value they read.
_ASKED_FOR = frozenset({"get_scale"})

#: Libraries that show or store what they are handed: the tensor is the user's to read first, or not to hand over.
_SHOWS = frozenset({"tqdm", "rich", "loguru", "wandb", "tensorboardX", "mlflow", "comet_ml", "neptune", "prettytable"})
_SHOWS_IN_TORCH = "torch/utils/tensorboard/".replace("/", os.sep)


@dataclasses.dataclass(frozen=True, slots=True)
class Charge:
    """The user's frame a call is charged to. Not to be kept.

    Attributes:
        frame: the nearest frame of the user's code.
        via: the library in between, ``tqdm``, or None for a call of the user's own.
        direct: True where the user made the call, or handed the value to a library that shows or stores it.
    """

    frame: FrameType
    via: str | None
    direct: bool


def charge(start: FrameType | None = None) -> Charge | None:
    """Who is to be told of the call that is running now.

    Args:
        start: where to look first; the caller's frame by default.

    Returns:
        None where no code of the user's is running, or where a library minds its own business.
    """
    start = sys._getframe(1) if start is None else start
    frame = user_frame(start)
    if frame is None:
        return None
    libraries = [found for found in libraries_between(start, frame) if not found[1].endswith(_FRONT)]
    if not libraries:
        return Charge(frame, None, True)
    if any(_is_own_business(file) for _, file in libraries) and not _is_asked_for(start, frame):
        return None
    shown = next((_shower(*library) for library in libraries if _shower(*library)), None)
    via = next((package for package, _ in reversed(libraries) if package != "torch"), "torch")
    return Charge(frame, shown or via, shown is not None)


def _is_own_business(file: str) -> bool:
    return any(part in file for part in _OWN_BUSINESS) and not any(part in file for part in _CALLERS_CHOICE)


def _is_asked_for(start: FrameType, user: FrameType) -> bool:
    """True where the user's own line calls a function for the value that it reads."""
    inside = start
    for outer in outward(start):
        if outer is user:
            return inside.f_code.co_name in _ASKED_FOR
        inside = outer
    return False


def _shower(package: str, file: str) -> str | None:
    if _SHOWS_IN_TORCH in file:
        return "torch.utils.tensorboard"
    return package if package in _SHOWS else None
