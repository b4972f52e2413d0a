"""PyTorch's words for a refusal because of devices."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

#: The name of an argument, the tensor, and the simulated device it is on.
Operand = tuple[str, Tensor, "torch.device | None"]

TYPE_NAMES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.int64: "LongTensor",
    torch.int32: "IntTensor",
    torch.int16: "ShortTensor",
    torch.int8: "CharTensor",
    torch.uint8: "ByteTensor",
    torch.bool: "BoolTensor",
    torch.complex64: "ComplexFloatTensor",
    torch.complex128: "ComplexDoubleTensor",
}


def type_name(dtype: torch.dtype, device: torch.device | None) -> str:
    """The legacy name of a tensor type, such as ``torch.cuda.FloatTensor``."""
    return f"torch.{'' if device is None else device.type + '.'}{TYPE_NAMES.get(dtype, 'Tensor')}"


def text_of(label: torch.device | None) -> str:
    """A device as PyTorch's messages write it."""
    return "cpu" if label is None else str(label)


def refuse_two(common: torch.device | None, other: torch.device | None) -> NoReturn:
    """The refusal of the element-wise kernels."""
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{text_of(common)} and {text_of(other)}!"
    )


def refuse_argument(
    name: str, label: torch.device | None, common: torch.device | None, wrapper: str, backend: str = "CUDA"
) -> NoReturn:
    """The refusal of a generated wrapper."""
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but got {name} is on {text_of(label)}, different from other "
        f"tensors on {text_of(common)} (when checking argument in method wrapper_{backend}_{wrapper})"
    )
