"""Which of its convolution kernels PyTorch picks for a host input, and so in which words it refuses a device weight."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from deviceguard.simulate.placement_words import Operand, refuse_argument, type_name


def check(operands: list[Operand], stride: list[int], dilation: list[int], transposed: bool, groups: int) -> None:
    """Refuse a convolution whose operands are on several devices."""
    _, data, home = operands[0]
    strange = next(operand for operand in operands[1:] if operand[2] != home)
    if home is not None:
        _refuse_types(data, home, strange, "")
    if _takes_mkldnn(data, operands[1][1], stride, dilation, groups):
        _refuse_types(data, home, strange, " or input should be a MKLDNN tensor and weight is a dense tensor")
    dilated = any(step != 1 for step in dilation)
    if data.dim() == 5 and not transposed and not dilated:
        raise NotImplementedError(
            "Could not run 'aten::slow_conv3d_forward' with arguments from the 'CUDA' backend. This could be because "
            "the operator doesn't exist for this backend, or was omitted during the selective/custom build process (if "
            "using custom build)."
        )
    refuse_argument(strange[0], strange[2], home, _kernel(data.dim() - 2, transposed, dilated))


def _refuse_types(data: Tensor, home: torch.device | None, strange: Operand, also: str) -> NoReturn:
    name, tensor, label = strange
    raise RuntimeError(
        f"Input type ({type_name(data.dtype, home)}) and {name} type ({type_name(tensor.dtype, label)}) should be the "
        f"same{also}"
    )


def _takes_mkldnn(data: Tensor, weight: Tensor, stride: list[int], dilation: list[int], groups: int) -> bool:
    """PyTorch's rule of thumb for when its MKLDNN kernel is the faster one."""
    if data.dtype is not torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    batch, last, before = data.size(0), weight.size(-1), weight.size(-2) if weight.dim() > 3 else 1
    stepped = any(step != 1 for step in (*stride, *dilation))
    worth = stepped or batch >= 16 or last != 1 or before != 1 or torch.get_num_threads() > 1
    large = groups > 1 or (last > 3 and before > 3) or batch > 1 or data.numel() > 20480
    return worth and large


def _kernel(dimensions: int, transposed: bool, dilated: bool) -> str:
    """The generated wrapper of the native kernel."""
    if transposed:
        return "_slow_conv_transpose3d" if dimensions == 3 else "slow_conv_transpose2d"
    if dilated:
        return "_slow_conv_dilated3d" if dimensions == 3 else "_slow_conv_dilated2d"
    return "__slow_conv2d_forward"
