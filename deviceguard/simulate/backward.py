"""The inside of backward: custom functions, hooks and recomputation run there, with no mode on unless we enter it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from deviceguard.simulate.labels import device_of, label_tensor, label_tree, quiet, tensors_in
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.placement_words import text_of

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special

#: On a custom function's node: the devices of what its forward returned and of what it took.
_OUTPUTS, _INPUTS = "_deviceguard_outputs", "_deviceguard_inputs"


def install(patches: Patches, mode: SimulationMode) -> None:
    """Enter the mode around the engine, and label what the engine hands to custom functions."""
    import torch.autograd.graph as graph

    from deviceguard.simulate.threads import entered

    engine = graph._engine_run_backward

    def engine_with_mode(*args: Any, **kwargs: Any) -> Any:
        with entered(mode):
            return engine(*args, **kwargs)

    patches.set(graph, "_engine_run_backward", engine_with_mode)
    patches.set(torch.autograd, "_engine_run_backward", engine_with_mode)
    checks = importlib.import_module("torch.utils.checkpoint")._allowed_determinism_checks_to_fns
    patches.set_item(checks, "default", _unlabelled(checks["default"]))
    _install_function(patches, mode)


def _unlabelled(extract: Any) -> Any:
    """What a checkpoint compares: saved outside the mode and compared inside it, so it must not see labels."""

    def extracted(tensor: Any) -> Any:
        with quiet():
            return extract(tensor)

    return extracted


def _install_function(patches: Patches, mode: SimulationMode) -> None:
    from deviceguard.simulate.threads import is_entered

    function = torch.autograd.function
    apply = vars(function.Function)["apply"]
    backward_apply: Any = function.BackwardCFunction.apply

    def apply_and_note(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = apply.__get__(None, cls)(*args, **kwargs)
        with quiet():
            for output in tensors_in((result,)):
                node = output.grad_fn
                if isinstance(node, function.BackwardCFunction):
                    inputs = [device_of(item) if isinstance(item, torch.Tensor) else None for item in args]
                    outputs = [device_of(item) for item in tensors_in((result,))]
                    home = next(filter(None, inputs), None)
                    if home is not None and not any(outputs) and not is_entered(mode):
                        # called from inside another call, which labels only what it returns: not what this one keeps
                        outputs = [home] * len(outputs)
                        label_tree(result, home, mode.memory)
                    setattr(node, _OUTPUTS, outputs)
                    setattr(node, _INPUTS, inputs)
                    break
        return result

    def backward_and_label(self: Any, *gradients: Any) -> Any:
        outputs = getattr(self, _OUTPUTS, ())
        with quiet():
            for gradient, device in zip(gradients, outputs, strict=False):
                if isinstance(gradient, torch.Tensor) and device is not None:
                    label_tensor(gradient, device, mode.memory)
        result = backward_apply(self, *gradients)
        _check_gradients(type(self).__name__, result, getattr(self, _INPUTS, ()))
        return result

    patches.set(function.Function, "apply", classmethod(apply_and_note))
    patches.set(function.BackwardCFunction, "apply", backward_and_label)


def _check_gradients(name: str, result: Any, inputs: Any) -> None:
    """Refuse a gradient on another device than its input, as the engine does."""
    gradients = result if isinstance(result, tuple) else (result,)
    with quiet():
        for position, (gradient, device) in enumerate(zip(gradients, inputs, strict=False)):
            if isinstance(gradient, torch.Tensor) and gradient.dim() > 0:
                found = device_of(gradient)
                if found is None and device is not None:
                    raise RuntimeError(
                        f"Function {name} returned an invalid gradient at index {position} - expected device "
                        f"{text_of(device)} but got {text_of(found)}"
                    )


def _check_roots(roots: Any, gradients: Any) -> None:
    """Refuse a starting gradient on another device than its output, as the engine does."""
    for position, (root, gradient) in enumerate(zip(_listed(roots), _listed(gradients), strict=False)):
        if not isinstance(gradient, torch.Tensor) or gradient.dim() == 0:
            continue
        expected, found = device_of(root), device_of(gradient)
        if expected is not found:
            raise RuntimeError(
                f"invalid gradient at index {position} - expected device {text_of(expected)} but got {text_of(found)}"
            )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def backward(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.backward``: the starting gradient must be with the tensor."""
    gradient = args[1] if len(args) > 1 else kwargs.get("gradient")
    if gradient is not None:
        _check_roots(args[0], gradient)
    return func(*args, **kwargs)


def gradients_of(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.autograd.grad``: each gradient is with its input."""
    _check_roots(args[0] if args else kwargs["outputs"], args[2] if len(args) > 2 else kwargs.get("grad_outputs"))
    result = func(*args, **kwargs)
    inputs = args[1] if len(args) > 1 else kwargs["inputs"]
    wanted = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    for gradient, tensor in zip(result, wanted, strict=False):
        if isinstance(gradient, torch.Tensor) and (device := device_of(tensor)) is not None:
            label_tensor(gradient, device, mode.memory)
    return result


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    return {torch.autograd.grad: gradients_of, torch.Tensor.backward: backward}
