"""The table: what each kind of operation does with operands on several devices.

Every row was read off PyTorch's own CUDA build (see ``tests/simulate/test_placement.py``). A row is looked up by the
name of the ATen operation, at the level where PyTorch's dispatcher has already taken composite functions apart, because
that is where PyTorch itself checks. What no row names is an element-wise kernel and follows the last rule.

======================  ================================================================================================
kind                    operands on several devices
======================  ================================================================================================
crossing                ``copy_``, ``_to_copy``: allowed, the data crosses
indexing                host index tensors index a device tensor; the reverse and a third device are refused
masked fill             the mask must be with ``self``; a 0-dim host value is taken
``where``               any 0-dim operand is fetched to the first device among them
host arguments          the arguments named in HOST_ARGUMENTS stay on the host and are not compared
convolution             refused in terms of input and weight *types* when the input is on the device
checked kernel          refused by the generated wrapper, which names the argument and the method, 0-dim tensors too
element-wise (rest)     0-dim host tensors mix in; everything else is refused, naming two devices
======================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deviceguard.simulate import convolution
from deviceguard.simulate.checked_kernels import CHECKED_WRAPPERS
from deviceguard.simulate.labels import device_of
from deviceguard.simulate.placement_words import Operand, refuse_argument, refuse_two, text_of

#: Operations whose operands may be anywhere.
CROSSING_TEXT = """
aten::copy_ aten::_to_copy aten::copy aten::_copy_from aten::_copy_from_and_resize aten::set_ aten::resize_as_
aten::_has_compatible_shallow_copy_type aten::is_same_size aten::empty_like aten::zeros_like aten::ones_like
aten::full_like aten::rand_like aten::randn_like aten::randint_like aten::new_empty aten::new_zeros aten::new_ones
aten::new_full aten::new_empty_strided aten::result_type aten::is_set_to aten::_foreach_copy_ aten::view_as
aten::expand_as aten::reshape_as aten::_pin_memory aten::is_pinned aten::as_strided_scatter
aten::diagonal_scatter aten::select_scatter aten::slice_scatter
aten::_nested_view_from_jagged
"""
CROSSING = frozenset(CROSSING_TEXT.split())

#: Arguments which the real kernel wants on the host (or does not compare), by operation.
HOST_ARGUMENTS: dict[str, frozenset[str]] = {
    "aten::_pack_padded_sequence": frozenset({"lengths"}),
    "aten::_pad_packed_sequence": frozenset({"batch_sizes"}),
    "aten::_ctc_loss": frozenset({"targets", "input_lengths", "target_lengths"}),
    "aten::_cudnn_ctc_loss": frozenset({"targets", "input_lengths", "target_lengths"}),
    "aten::_thnn_fused_lstm_cell": frozenset(),
    "aten::lstm": frozenset({"batch_sizes"}),
    "aten::gru": frozenset({"batch_sizes"}),
    "aten::rnn_tanh": frozenset({"batch_sizes"}),
    "aten::rnn_relu": frozenset({"batch_sizes"}),
    "aten::tensor_split": frozenset({"tensor_indices_or_sections"}),
    "aten::histogramdd": frozenset({"weight"}),
    "aten::_fused_adam_": frozenset({"state_steps"}),
    "aten::_fused_adamw_": frozenset({"state_steps"}),
    "aten::index_fill": frozenset({"value"}),
    "aten::index_fill_": frozenset({"value"}),
}

INDEXING = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
)
#: Of these, those that refuse indices on a third device; the ones that write fetch them.
READING = frozenset({"aten::index", "aten::_unsafe_index"})
MASKED_FILL = frozenset({"aten::masked_fill", "aten::masked_fill_"})
CONVOLUTION = frozenset({"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"})
#: Composite on the host, but one checked kernel on the device: its wrapper, and its names for the arguments.
RENAMED: dict[str, tuple[str, dict[str, str]]] = {
    "aten::embedding": ("_index_select", {"weight": "self", "indices": "index"}),
    "aten::stack": ("cat", {}),
    "aten::_stack": ("cat", {}),
    "aten::mv": ("addmv_", {}),
    "aten::masked_scatter": ("_masked_scatter_", {}),
    "aten::complex": ("out_complex_out", {}),
    "aten::polar": ("out_polar_out", {}),
    "aten::linalg_lstsq": ("out_linalg_lstsq_out", {}),
    "aten::addr_": ("out_addr_out", {}),
    "aten::put": ("_put_", {}),
}
ADDCMUL = frozenset({"aten::addcmul", "aten::addcmul_"})
#: Element-wise kernels that take no 0-dim host tensor.
NO_SCALARS_TEXT = """
aten::addcdiv aten::addcdiv_ aten::binary_cross_entropy aten::index_fill aten::index_fill_ aten::smooth_l1_loss
"""
NO_SCALARS = frozenset(NO_SCALARS_TEXT.split())
#: Made of element-wise kernels of which the first writes to what it made of this argument.
FIRST_WRITTEN = {"aten::binary_cross_entropy_with_logits": "target", "aten::soft_margin_loss": "self"}
#: Whose operands the kernel takes in reverse.
REVERSED = frozenset({"aten::rsub", "aten::binary_cross_entropy_with_logits"})
WHERE = frozenset({"aten::where"})
#: Those that take one as the second operand only.
NO_SCALAR_SELF = frozenset({"aten::logical_and", "aten::logical_or", "aten::logical_xor"})


def check(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Refuse what the device would refuse; say on which device new results are."""
    operands = list(operands_of(func, args, kwargs))
    labels = {label for _, _, label in operands}
    if len(labels) < 2:
        return labels.pop() if labels else None
    name = func._schema.name
    if name in CROSSING:
        return operands[0][2]
    if name in INDEXING:
        return _check_indexing(name, operands)
    if name in MASKED_FILL:
        return _check_masked_fill(operands)
    if name in WHERE:
        return _check_where(operands)
    if name in CONVOLUTION:
        stride, dilation, transposed, groups = args[3], args[5], args[6], args[8]
        convolution.check(operands, stride, dilation, transposed, groups)
    host = HOST_ARGUMENTS.get(name)
    if host is not None:
        operands = [operand for operand in operands if operand[0] not in host]
        if len({label for _, _, label in operands}) < 2:
            return operands[0][2]
    wrapper = checked_wrapper(func)
    if name in RENAMED:
        wrapper, names = RENAMED[name]
        operands = [(names.get(argument, argument), tensor, label) for argument, tensor, label in operands]
    if name == "aten::mv":
        operands = [("self", operands[1][1], operands[1][2]), ("mat", operands[0][1], operands[0][2]), *operands[1:]]
    if name == "aten::native_batch_norm" and _takes_cudnn(operands):
        wrapper = "_cudnn_batch_norm"
    if wrapper is not None:
        _check_generated(wrapper, operands)
    if name == "aten::mse_loss" and _reduced(args, kwargs) and any(tensor.dim() == 0 for _, tensor, _ in operands):
        refuse_two(operands[0][2], operands[1][2])
    if name in REVERSED:
        operands[:2] = operands[1::-1]
    if name in ADDCMUL and operands[1][2] is None and operands[1][1].dim() == 0:
        _refuse_addcmul(name, operands[0][2])
    return _check_elementwise(name, operands, written_by(func) | {FIRST_WRITTEN.get(name, "")})


def operands_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Operand]:
    """The tensors of a call with the names of the schema, results (``out=``) first as the generated code has them."""
    arguments = func._schema.arguments
    bound: list[tuple[Any, Any]] = []
    for position, argument in enumerate(arguments):
        if position < len(args):
            bound.append((argument, args[position]))
        elif argument.name in kwargs:
            bound.append((argument, kwargs[argument.name]))
    bound.sort(key=lambda pair: not (pair[0].is_out))
    for argument, value in bound:
        if isinstance(value, Tensor):
            yield argument.name, value, device_of(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, Tensor):
                    yield argument.name, item, device_of(item)


def written_by(func: Any) -> set[str]:
    """The names of the arguments that the operation writes to."""
    arguments = func._schema.arguments
    return {item.name for item in arguments if item.alias_info is not None and item.alias_info.is_write}


def checked_wrapper(func: Any) -> str | None:
    """The name of the generated wrapper that checks this operation, if one does."""
    name = func._schema.name.removeprefix("aten::")
    overload = func._schema.overload_name
    candidates = (
        f"{name}_{overload}" if overload else name,
        f"{overload}_{name}",
        f"{name}_out_{overload}",
        f"{overload}_{name}_out",
    )
    return next((candidate for candidate in candidates if candidate in CHECKED_WRAPPERS), None)


def _check_generated(wrapper: str, operands: list[Operand]) -> None:
    common = operands[0][2]
    for name, _, label in operands[1:]:
        if label != common:
            refuse_argument(name, label, common, wrapper)


def _takes_cudnn(operands: list[Operand]) -> bool:
    """Whether batch normalisation on the device is cuDNN's: with images, not in bfloat16, scaled and shifted."""
    _, data, home = operands[0]
    names = {name for name, _, _ in operands}
    return home is not None and data.dim() > 2 and data.dtype is not torch.bfloat16 and {"weight", "bias"} <= names


def _reduced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("reduction", args[2] if len(args) > 2 else 1))


def _check_where(operands: list[Operand]) -> torch.device | None:
    """``where`` fetches any 0-dim operand to the first device that it sees."""
    home = next(label for _, _, label in operands if label is not None)
    for _, tensor, label in operands:
        if label != home and tensor.dim() > 0:
            refuse_two(home, label)
    return home


def _check_elementwise(name: str, operands: list[Operand], written: set[str]) -> torch.device | None:
    common = next(label for _, _, label in operands if label is not None)
    scalars = 0
    for argument, tensor, label in operands:
        scalar = label is None and tensor.dim() == 0 and argument not in written and name not in NO_SCALARS
        scalar = scalar and not (name in NO_SCALAR_SELF and argument == "self")
        if label != common and not scalar:
            refuse_two(common, label)
        scalars += scalar
        if scalars > 1 and not name.startswith("aten::_"):  # those take lists, of which each item is a call of its own
            raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")
    return common


def _refuse_addcmul(name: str, home: torch.device | None) -> None:
    if home is not None:
        raise RuntimeError(
            "CPU Scalar support for tensor1 argument is not supported when calling addcmul on CUDA tensors. However, "
            "CPU Scalar support for tensor2 is supported, please swap your tensor1 and tensor2 terms."
        )


def _check_indexing(name: str, operands: list[Operand]) -> torch.device | None:
    home = operands[0][2]
    for argument, tensor, label in operands[1:]:
        if argument == "indices" and label is not None and label != home and name in READING:
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({text_of(home)})"
            )
        if argument == "values" and label != home and tensor.dim() != 0:
            refuse_two(home if home is not None else label, label if home is not None else home)
    return home


def _check_masked_fill(operands: list[Operand]) -> torch.device | None:
    home = operands[0][2]
    if home is None and operands[-1][0] == "value":
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    for argument, _, label in operands[1:]:
        if argument == "mask" and label != home:
            raise RuntimeError(
                "expected self and mask to be on the same device, but got mask on "
                f"{text_of(label)} and self on {text_of(home)}"
            )
    return home
