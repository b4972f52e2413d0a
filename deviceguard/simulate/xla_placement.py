"""What torch_xla does with host operands: it uploads some, runs some operations on the host, and refuses the rest.

Read off torch_xla 2.9 by calling each operation of PyTorch's own catalogue with one host operand at a time. Looked up
at the level of ATen operations, like the table of CUDA in ``placement.py``.

====================  ==================================================================================================
kind                  a host operand
====================  ==================================================================================================
indexing              host indices index a device tensor; a host tensor is not indexed by device indices
refusing              refused, except for the arguments named in TAKEN; numbers (0-dim tensors) too
numbers only          refused, except for numbers
written               the result of an in-place operation stays where it is
on the host           operations without lowering run on the host: the result is with the first tensor
the rest              uploaded without a word; the result is on the device
====================  ==================================================================================================
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from deviceguard.simulate.placement import INDEXING, operands_of, written_by
from deviceguard.simulate.placement_words import Operand, type_name

REFUSING_TEXT = """
_cdist_forward addmm addmm_ addmv addmv_ _native_batch_norm_legit native_batch_norm native_group_norm
native_layer_norm _prelu_kernel _trilinear as_strided_scatter atan2 baddbmm bmm convolution diagonal_scatter dot
embedding gather index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_select lerp lerp_
masked_scatter masked_scatter_ max_unpool2d max_unpool3d mm mse_loss mv nll_loss2d_forward nll_loss_forward normal put
put_ remainder rrelu_with_noise scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_
select_scatter slice_scatter smooth_l1_loss stack triangular_solve where xlogy _softmax_backward_data
_log_softmax_backward_data avg_pool2d_backward embedding_dense_backward gelu_backward max_pool2d_with_indices_backward
mse_loss_backward native_batch_norm_backward nll_loss_backward sigmoid_backward smooth_l1_loss_backward tanh_backward
threshold_backward binary_cross_entropy_backward
"""
REFUSING = frozenset(f"aten::{name}" for name in REFUSING_TEXT.split())
NUMBERS_ONLY_TEXT = """
addcdiv addcdiv_ addcmul addcmul_ binary_cross_entropy bitwise_left_shift bitwise_right_shift clamp clamp_min clamp_max
clamp_ clamp_min_ clamp_max_ eq ne ge gt le lt logical_and logical_and_ logical_or logical_or_ logical_xor logical_xor_
masked_fill masked_fill_ maximum minimum take
"""
NUMBERS_ONLY = frozenset(f"aten::{name}" for name in NUMBERS_ONLY_TEXT.split())
#: Host arguments that these take all the same.
TAKEN: dict[str, frozenset[str]] = {
    "aten::_native_batch_norm_legit": frozenset({"weight", "bias"}),
    "aten::native_batch_norm": frozenset({"weight", "bias", "running_mean", "running_var"}),
    "aten::nll_loss_forward": frozenset({"weight"}),
    "aten::nll_loss2d_forward": frozenset({"weight"}),
    "aten::masked_fill": frozenset({"value"}),
    "aten::masked_fill_": frozenset({"value"}),
    "aten::clamp": frozenset({"min", "max"}),
}
JOINING = frozenset({"aten::cat"})
ON_HOST_TEXT = """
addbmm bincount bucketize copysign fmax fmin gcd lcm grid_sampler_2d grid_sampler_3d heaviside huber_loss
hypot igamma igammac index_reduce isin linalg_cross linalg_ldl_solve linalg_lu_solve linalg_solve_triangular logaddexp
logaddexp2 masked_select multi_margin_loss nextafter searchsorted vdot _ctc_loss _embedding_bag lu_unpack copy_
"""
ON_HOST = frozenset(f"aten::{name}" for name in ON_HOST_TEXT.split())


def check(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Refuse what torch_xla would refuse; say on which device new results are."""
    operands = list(operands_of(func, args, kwargs))
    labels = {label for _, _, label in operands}
    if len(labels) < 2:
        return labels.pop() if labels else None
    name = func._schema.name
    if name in INDEXING:
        return _check_indexing(operands)
    if name in JOINING and None in labels:
        _refuse_joining(operands)
    if name in REFUSING or name in NUMBERS_ONLY or (operands[0][0] == "out" and operands[0][2] is not None):
        _refuse_host(name, operands)
    written = written_by(func)
    first = next((label for argument, _, label in operands if argument in written), operands[0][2])
    if written or name in ON_HOST:
        return first
    return next(label for label in labels if label is not None)


def _refuse_host(name: str, operands: list[Operand]) -> None:
    taken = TAKEN.get(name, frozenset())
    for argument, tensor, label in operands:
        if label is None and argument not in taken and not (name in NUMBERS_ONLY and tensor.dim() == 0):
            _refuse(tensor)


def _check_indexing(operands: list[Operand]) -> torch.device | None:
    home = operands[0][2]
    if home is None:
        raise RuntimeError(
            "Check failed: bridge::IsXlaTensor(self) && indices_on_cpu_or_xla: indices should be either on cpu or on "
            "the same device as the indexed tensor (XLA). When using XLA, the indexed tensor must be an XLA tensor."
        )
    return home


def _refuse_joining(operands: list[Operand]) -> NoReturn:
    position, tensor = next((place, tensor) for place, (_, tensor, label) in enumerate(operands) if label is None)
    raise RuntimeError(
        "Expected all tensors in the given list to be XLA tensors. Element at index "
        f"{position} is not an XLA tensor. Got: {type_name(tensor.dtype, None)}"
    )


def _refuse(tensor: torch.Tensor) -> NoReturn:
    kind = "CPUBoolType" if tensor.dtype is torch.bool else type_name(tensor.dtype, None)
    raise RuntimeError(f"Expected XLA tensor. Got: {kind}")
