"""Which operations CUDA's autocast casts, and how, where the CPU's autocast leaves them alone.

The names are those of ``AutocastCUDA`` in PyTorch's dispatcher which ``AutocastCPU`` lacks; what is done with each is
said by the lists in ``ATen/autocast_mode.h``, which every build ships. While a CUDA device is simulated the CPU's
autocast gives the same dtypes.

The arithmetic stays the CPU's: an operation that CUDA would do in float32 is done in bfloat16 where the CPU's autocast
does so, and its result is cast up. With float16, whose range is small, it is done in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.library import Library

from deviceguard.simulate import autocast
from deviceguard.simulate.labels import device_of, tensors_in
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.state import running

_KEY = "AutocastCPU"
_LOWER_TEXT = """
_convolution convolution prelu addmv addr chain_matmul einsum mv linalg_multi_dot _thnn_fused_lstm_cell
_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
"""
_FLOAT32_TEXT = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity dist pdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
"""
_RESULT_TEXT = """
softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord sum
sum.dim_IntList prod prod.dim_int norm.Scalar norm.ScalarOpt_dim
"""
_WIDEST_TEXT = "addcdiv addcmul atan2 bilinear cross dot vdot index_put tensordot scatter_add"
_LOW = (torch.float16, torch.bfloat16)

_BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)
#: Functions that the CPU's autocast casts and CUDA's does not.
_LEFT_ALONE_TEXT = "pad avg_pool3d adaptive_avg_pool3d max_pool3d max_unpool2d max_unpool3d"


def _is_cast(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if _is_cast(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_to(item, dtype) for item in value)
    return value


def _lower(op: Any, args: Any, kwargs: Any) -> Any:
    dtype = torch._C.get_autocast_dtype("cpu")
    return op(*_to(args, dtype), **{key: _to(value, dtype) for key, value in kwargs.items()})


def _float32(op: Any, args: Any, kwargs: Any) -> Any:
    if torch._C.get_autocast_dtype("cpu") is torch.bfloat16:
        return _raised(op(*args, **kwargs))
    return op(*_to(args, torch.float32), **{key: _to(value, torch.float32) for key, value in kwargs.items()})


def _result(op: Any, args: Any, kwargs: Any) -> Any:
    position = next((place for place, found in enumerate(op._schema.arguments) if found.name == "dtype"), len(args))
    asked = kwargs.get("dtype") or (args[position] if position < len(args) else None)
    if asked is not None or args[0].dtype not in _LOW:
        return op(*args, **kwargs)
    if torch._C.get_autocast_dtype("cpu") is torch.bfloat16:
        return _raised(op(*args, **kwargs))
    return op(args[0].float(), *args[1:], **kwargs)


def _raised(result: Any) -> Any:
    """Results in low precision, cast up."""
    if isinstance(result, Tensor):
        return result.float() if result.dtype in _LOW else result
    return tuple(_raised(item) for item in result) if isinstance(result, tuple) else result


def _widest(op: Any, args: Any, kwargs: Any) -> Any:
    dtypes = {tensor.dtype for tensor in tensors_in((args, kwargs)) if _is_cast(tensor)}
    dtype = torch.float32 if torch.float32 in dtypes else next(iter(dtypes), torch.float32)
    return op(*_to(args, dtype), **{key: _to(value, dtype) for key, value in kwargs.items()})


def _kernel(op: Any, policy: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys), torch._C.DisableTorchFunction():
            return op(*args, **kwargs) if autocast.HOST.running else policy(op, args, kwargs)

    return kernel


def _entries() -> Iterator[tuple[str, Callable[[Any, Any, Any], Any]]]:
    lists = ((_LOWER_TEXT, _lower), (_FLOAT32_TEXT, _float32), (_RESULT_TEXT, _result), (_WIDEST_TEXT, _widest))
    for text, policy in lists:
        for name in text.split():
            yield name, policy


def install(patches: Patches) -> None:
    """Give the CPU's autocast what CUDA's has."""
    library = Library("aten", "IMPL")
    patches.on_undo(library._destroy)
    for name, policy in _entries():
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY):
            continue
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, _kernel(op, policy), _KEY)


def recurrent(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A recurrent network as cuDNN runs it: under autocast all of it in low precision."""
    if running().type != "cuda" or not torch._C.is_autocast_enabled("cpu"):
        return func(*args, **kwargs)
    cast = _to(args, torch._C.get_autocast_dtype("cpu"))
    torch._C.set_autocast_enabled("cpu", False)
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            return func(*cast, **kwargs)
    finally:
        torch._C.set_autocast_enabled("cpu", True)


def _on_device(args: Any, kwargs: Any) -> bool:
    return any(device_of(tensor) is not None for tensor in tensors_in((args, kwargs)))


def _banned(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """``binary_cross_entropy``: refused under autocast, because its input may be zero in low precision."""
    if torch._C.is_autocast_enabled("cpu") and _on_device(args, kwargs):
        raise RuntimeError(_BANNED)
    return mode.call(func, args, kwargs)


def _left_alone(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Functions that CUDA's autocast does not know."""
    enabled = torch._C.is_autocast_enabled("cpu")
    if not enabled or not _on_device(args, kwargs):
        return mode.call(func, args, kwargs)
    torch._C.set_autocast_enabled("cpu", False)
    try:
        return mode.call(func, args, kwargs)
    finally:
        torch._C.set_autocast_enabled("cpu", True)


def handlers() -> dict[Any, Any]:
    """The table of this module."""
    table: dict[Any, Any] = {functional.binary_cross_entropy: _banned}
    for name in _LEFT_ALONE_TEXT.split():
        table[getattr(functional, name)] = _left_alone
    return table
