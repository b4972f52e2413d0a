"""Packed sequences: the batch sizes of one live on the host, whatever device its data is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deviceguard.simulate import autocast_lists
from deviceguard.simulate.labels import device_of, label_tensor, label_tree, tensors_in
from deviceguard.simulate.placement_words import text_of, type_name

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special


def pack(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``_pack_padded_sequence``: wants host lengths, gives data on the device and host batch sizes."""
    data, lengths = args[0], args[1]
    if isinstance(lengths, Tensor) and (found := device_of(lengths)) is not None:
        short = type_name(lengths.dtype, None).removeprefix("torch.").removesuffix("Tensor")
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {found} {short} tensor"
        )
    return _first_on_device(mode, data, func(*args, **kwargs))


def pad(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``_pad_packed_sequence``: gives data on the device and host lengths."""
    return _first_on_device(mode, args[0], func(*args, **kwargs))


def _first_on_device(mode: SimulationMode, data: Tensor, result: Any) -> Any:
    if (device := device_of(data)) is not None:
        label_tensor(result[0], device, mode.memory)
    return result


def recurrent(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``lstm``, ``gru``, ``rnn``: the batch sizes of a packed input are not compared."""
    packed = len(args) > 2 and isinstance(args[1], Tensor) and args[1].dtype is torch.int64 and args[1].dim() == 1
    compared = (args[0], *args[2:]) if packed else args
    places = {device_of(tensor) for tensor in tensors_in(compared)}
    if len(places) > 1:
        if not packed:
            _check_attributes(args)
        return mode.mixed(func, args, kwargs)
    device = places.pop()
    if device is None:
        return mode.call(func, args, kwargs)
    result = autocast_lists.recurrent(func, args, kwargs)
    label_tree(result, device, mode.memory)
    return result


def _check_attributes(args: tuple[Any, ...]) -> None:
    """Refuse a hidden state, then a parameter, that is not with the input; packed inputs have no such check."""
    home = device_of(args[0])
    for kind, values in zip(("hidden", "parameter"), args[1:3], strict=False):
        for tensor in tensors_in((values,)):
            if (found := device_of(tensor)) != home:
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {text_of(home)} and "
                    f"{kind} tensor at {text_of(found)}"
                )


def flatten(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What packs the weights of a recurrent module for cuDNN, if PyTorch has it; nobody reads the result."""


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    return {
        torch._cudnn_rnn_flatten_weight: flatten,
        torch._VF._pack_padded_sequence: pack,
        torch._VF._pad_packed_sequence: pad,
        torch.lstm: recurrent,
        torch.gru: recurrent,
        torch.rnn_tanh: recurrent,
        torch.rnn_relu: recurrent,
    }
