"""The properties and methods that ask a tensor where it is, and those that need it on the host."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deviceguard.simulate import bodies
from deviceguard.simulate.labels import device_of, is_pinned, label_tensor, label_tree, mark_pinned
from deviceguard.simulate.placement_words import text_of
from deviceguard.simulate.state import running

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def device(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.device``."""
    found = device_of(args[0])
    return func(*args) if found is None else found


def is_simulated(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> bool:
    """``Tensor.is_cuda`` under a simulated CUDA, ``Tensor.is_xla`` under a simulated XLA."""
    return device_of(args[0]) is not None


def is_cpu(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> bool:
    """``Tensor.is_cpu``."""
    return device_of(args[0]) is None and bool(func(*args))


def get_device(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> int:
    """``Tensor.get_device``: the index, -1 on the host."""
    found = device_of(args[0] if args else kwargs["input"])
    return -1 if found is None else int(found.index)


def numpy(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.numpy`` and ``numpy.asarray``: refused on a device."""
    found = device_of(args[0])
    if found is not None and not kwargs.get("force"):
        raise TypeError(
            f"can't convert {found} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    result = func(*args, **kwargs)
    return result if found is None else result.copy()


def pinned(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> bool:
    """``Tensor.is_pinned``."""
    return is_pinned(args[0])


def pin_memory(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.pin_memory``: a copy in memory that counts as pinned."""
    if is_pinned(args[0]):
        return args[0]
    found = device_of(args[0])
    if found is not None:
        raise RuntimeError(f"cannot pin '{type_string(args[0])}' only dense CPU tensors can be pinned")
    result = args[0].clone()
    mark_pinned(result)
    return result


def type_string(tensor: Tensor) -> str:
    """What ``Tensor.type()`` says."""
    from deviceguard.simulate.placement_words import type_name

    return type_name(tensor.dtype, device_of(tensor))


def grad(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.grad``: made by the C++ engine without a label, and always with its tensor."""
    result = func(*args)
    if result is not None and (found := device_of(args[0])) is not None:
        label_tensor(result, found, mode.memory)
    return result


def set_grad(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.grad = ...``: refused across devices."""
    owner, value = args
    if isinstance(value, Tensor):
        here, there = device_of(owner), device_of(value)
        if here is not there:
            raise RuntimeError(
                f"attempting to assign a gradient with device type '{_type_of(there)}' to a tensor with device type "
                f"'{_type_of(here)}'. Please ensure that the gradient and the tensor are on the same device"
            )
    return func(owner, value)


def set_data(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.data = ...``: a change of device makes PyTorch forget the node that accumulates the gradient.

    Its C++ sees no change here. A change of dtype has the same effect, so the tensor passes through one.
    """
    owner, value = args
    if owner.requires_grad and device_of(owner) is not device_of(value):
        other = torch.float64 if value.dtype is not torch.float64 else torch.float32
        func(owner, torch.empty(0, dtype=other))
    return func(owner, value)


def _type_of(label: torch.device | None) -> str:
    return "cpu" if label is None else label.type


def set_storage(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.set_``: refused across devices, except for a tensor that holds nothing yet."""
    from deviceguard.simulate.labels import ATTRIBUTE

    owner = args[0]
    source = args[1] if len(args) > 1 else kwargs.get("source")
    if source is None:
        return func(*args, **kwargs)
    if isinstance(source, Tensor):
        there = device_of(source)
    else:
        untyped = getattr(source, "_untyped_storage", source)
        allocation = getattr(untyped, ATTRIBUTE, None)
        there = None if allocation is None else allocation.device
    here = device_of(owner)
    if here is not there and owner.untyped_storage().nbytes() > 0:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{text_of(here)}" to a storage on different device '
            f'"{text_of(there)}".  This is no longer allowed; the devices must match.'
        )
    return func(*args, **kwargs)


def with_body(mode: SimulationMode, func: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Python functions whose inside asks for the device."""
    with mode:
        return bodies.body(func)(*args, **kwargs)


def plain(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """Functions that neither read nor make a label."""
    return func(*args, **kwargs)


def share_memory(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.share_memory_``: does nothing on a device, where memory is shared by its handle."""
    return args[0] if device_of(args[0]) is not None else func(*args, **kwargs)


def is_shared(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> bool:
    """``Tensor.is_shared``: always so on a device."""
    return device_of(args[0]) is not None or bool(func(*args, **kwargs))


def register_hook(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.register_hook``: the gradient that the hook gets is with its tensor."""
    owner, hook = args[0], args[1] if len(args) > 1 else kwargs["hook"]
    found = device_of(owner)
    return func(owner, hook if found is None else _labelling(hook, found, mode))


def _labelling(hook: Call, found: torch.device, mode: SimulationMode) -> Call:
    @functools.wraps(hook)
    def labelled(gradient: Any) -> Any:
        with torch._C.DisableTorchFunction():
            label_tree(gradient, found, mode.memory)
        return hook(gradient)

    return labelled


def dlpack_device(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.__dlpack_device__``."""
    found = device_of(args[0])
    if found is None:
        return func(*args, **kwargs)
    return (torch.utils.dlpack.DLDeviceType.kDLCUDA, found.index)


def host_only(mode: SimulationMode, func: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """``apply_`` and ``map_`` exist on the host only."""
    if device_of(args[0]) is not None:
        raise TypeError(f"{func.__name__} is only implemented on CPU tensors")
    return mode.call(func, args, kwargs)


_PLAIN_PROPERTIES = (
    "shape dtype requires_grad is_leaf ndim layout grad_fn is_sparse is_quantized is_meta is_nested is_mkldnn "
    "is_sparse_csr retains_grad output_nr name names itemsize nbytes _version"
)
_PLAIN_METHODS = (
    "size dim stride numel nelement element_size is_floating_point is_complex is_contiguous data_ptr ndimension "
    "storage_offset __len__ __hash__ is_signed is_inference is_conj is_neg item tolist __bool__ __float__ __int__ "
    "__index__ untyped_storage storage _typed_storage register_post_accumulate_grad_hook retain_grad"
)
_BODY_METHODS = "__repr__ __format__ __contains__ storage_type"


def _property(name: str) -> Any:
    return getattr(Tensor, name)


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    table: dict[Any, Special] = {torch._C._set_grad_enabled: plain}
    for name in _PLAIN_PROPERTIES.split():
        if hasattr(getattr(Tensor, name, None), "__get__"):
            table[_property(name).__get__] = plain
    table.update({getattr(Tensor, name): plain for name in _PLAIN_METHODS.split() if hasattr(Tensor, name)})
    table.update({getattr(Tensor, name): with_body for name in _BODY_METHODS.split() if hasattr(Tensor, name)})
    table.update(
        {
            _property("device").__get__: device,
            _property("is_cpu").__get__: is_cpu,
            _property(f"is_{running().type}").__get__: is_simulated,
            Tensor.get_device: get_device,
            Tensor.numpy: numpy,
            Tensor.__array__: numpy,
            Tensor.is_pinned: pinned,
            Tensor.pin_memory: pin_memory,
            _property("grad").__get__: grad,
            _property("grad").__set__: set_grad,
            _property("data").__set__: set_data,
            Tensor.set_: set_storage,
            Tensor.share_memory_: share_memory,
            Tensor.is_shared: is_shared,
            Tensor.register_hook: register_hook,
            Tensor.__dlpack_device__: dlpack_device,
            Tensor.apply_: host_only,
            Tensor.map_: host_only,
            torch.get_device: get_device,
        }
    )
    return table
