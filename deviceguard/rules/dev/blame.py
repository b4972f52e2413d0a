"""Which object is to blame for a refused mix of devices, and which rule speaks: one fault, one finding."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from deviceguard.backends.devices import is_accelerator, is_host, same
from deviceguard.events import CallFailed, Operand
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import is_user_code, locals_of, outward
from deviceguard.naming.objects import joined
from deviceguard.naming.provenance import Origin, origin_of
from deviceguard.rules.dev.optimizer_state import entry_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context
    from deviceguard.naming.strays import Holder

_DEVICE = re.compile(r"\b[a-z]{2,12}(?::\d+)?\b")
_MOVES = frozenset({"to", "cuda", "type", "type_as"})
_LOSS = re.compile(r"loss|criterion", re.IGNORECASE)
_PROBLEMS = frozenset({"device", "index-device"})


@dataclasses.dataclass(frozen=True, slots=True)
class Blame:
    """The culprit of one refused call.

    Attributes:
        code: the rule that speaks.
        name: the user's words for the culprit.
        device: where it is.
        home: where it should be; None when that could not be told.
        tensor: the culprit, if it is a tensor that could be found.
        module: the culprit, if it is a module that was not moved; or the module that refused.
        holder: where the culprit hangs unregistered, for DEV003, DEV004 and DEV005.
        origin: what the source says of how it came to be.
        is_module: True when a module is the culprit.
    """

    code: str
    name: str
    device: torch.device
    home: torch.device | None
    tensor: torch.Tensor | None = None
    module: nn.Module | None = None
    holder: Holder | None = None
    origin: Origin = dataclasses.field(default_factory=Origin)
    is_module: bool = False


def blame(event: CallFailed, context: Context) -> Blame | None:
    """The culprit of a refused mix of devices; None for other refusals, and where none can be found."""
    if event.problem not in _PROBLEMS or event.kind in ("optimizer", "backward"):
        return None
    home = _home(event)
    return _unmoved_module(event, home, context) or _odd_tensor(event, home, context) or _unseen_factory(event, home)


def home_of(module: nn.Module) -> torch.device | None:
    """The device of a module's own tensors, else the one all parameters of its tree share, else None."""
    for registry in (module._parameters, module._buffers):
        devices = {tensor.device for tensor in registry.values() if tensor is not None}
        if devices:
            return devices.pop() if len(devices) == 1 else None
    devices = {parameter.device for parameter in module.parameters()}
    return devices.pop() if len(devices) == 1 else None


def _home(event: CallFailed) -> torch.device | None:
    """Where everything should be: on the accelerator that takes part."""
    own = home_of(event.module) if event.module is not None else None
    if own is not None and is_accelerator(own):
        return own
    found = [operand.tensor.device for operand in event.operands if is_accelerator(operand.tensor.device)]
    if found:
        return found[0]
    return _named_in(str(event.error))


def _named_in(text: str) -> torch.device | None:
    """The accelerator a refusal's text speaks of."""
    import torch

    for name in dict.fromkeys(_DEVICE.findall(text)):
        try:
            device = torch.device(name)
        except RuntimeError:  # an ordinary word
            continue
        if is_accelerator(device):
            return device
    return None


def _unmoved_module(event: CallFailed, home: torch.device | None, context: Context) -> Blame | None:
    module = event.module
    own = home_of(module) if module is not None else None
    if module is None or own is None or home is None or same(own, home):
        return None
    holder = _holder(module, event, context)
    loss = event.kind == "loss"
    if holder is not None:
        name = f"{context.subjects.model_name(holder.module, event.frame)}.{holder.path}"
        return Blame("DEV003", name, own, home, module=module, holder=holder, is_module=True)
    if not loss:
        top, _ = context.ledger.top_of(module)
        module = top if home_of(top) == own else module  # as a whole it was never moved
    name = context.subjects.model_name(module, event.frame)
    if loss:
        attribute, tensor = next(iter(_own_tensors(module)), ("", None))
        return Blame("DEV002", joined(name, attribute), own, home, tensor, module)
    return Blame("DEV001", name, own, home, module=module, is_module=True)


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for registry in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in registry.items() if tensor is not None)


def _odd_tensor(event: CallFailed, home: torch.device | None, context: Context) -> Blame | None:
    operand = _culprit(event, home, context)
    if operand is None:
        return None
    found = origin_of(operand.expression, event.frame, event.line)
    holder = _holder(operand.tensor, event, context)
    name = operand.expression or f"argument {operand.role!r}"
    if holder is not None:
        prefix = context.subjects.model_name(holder.module, event.frame)
        name = joined(f"{prefix}.{holder.path}", holder.inner) if holder.inner else f"{prefix}.{holder.path}"
    code = _code_for(event, operand, holder, found, context)
    if entry_of(operand.tensor, locals_of(event.frame).get("self")) is not None:
        code = "DEV012"
    return Blame(code, name, operand.tensor.device, home, operand.tensor, event.module, holder, found)


def _code_for(event: CallFailed, operand: Operand, holder: Holder | None, found: Origin, context: Context) -> str:
    if holder is not None:
        if holder.inner:
            return "DEV003"
        return "DEV005" if context.ledger.former.knows(holder.stray) else "DEV004"
    if is_accelerator(operand.tensor.device):
        return "DEV010"  # what is on an accelerator, but on another index of it
    if event.kind == "loss":
        return "DEV002"
    if event.problem == "index-device" or _looked_up(event, operand):
        return "DEV007"
    if event.module is not None:
        return "DEV011" if is_traced(event.module) else "DEV001"
    if found.factory is not None and not _is_loss_argument(event, operand) and not _is_model_input(event, operand):
        return "DEV008"
    return "DEV002" if _in_a_loss(event) else "DEV001"


def is_traced(module: nn.Module) -> bool:
    """True for a scripted or traced module."""
    import torch

    return isinstance(module, torch.jit.ScriptModule)


def _looked_up(event: CallFailed, operand: Operand) -> bool:
    """True for a host table that a function looks up with a device index."""
    called = event.callee.rpartition(".")[2]
    return (
        called in ("gather", "index_select", "take", "take_along_dim", "embedding", "index_add_", "scatter_add_")
        and operand.role in ("self", "argument 1", "input", "weight")
        and event.module is None
        and is_host(operand.tensor.device)
        and any(
            not other.tensor.is_floating_point() and is_accelerator(other.tensor.device) for other in event.operands
        )
    )


def _in_a_loss(event: CallFailed) -> bool:
    """True where a loss is written out by hand: in a function so named, or assigned to a variable so named."""
    if _LOSS.search(event.frame.f_code.co_name):
        return True
    from deviceguard.naming.frames import site_of

    site = site_of(event.frame, event.line)
    target = (site.source or "").split("=", 1) if site is not None else []
    if len(target) == 2 and _LOSS.search(target[0]):
        return True
    caller = next((frame for frame in outward(event.frame.f_back) if is_user_code(frame)), None)
    text = running_call(caller) if caller is not None else None
    return text is not None and text.kind == "call" and bool(_LOSS.search(text.callee))


def _is_model_input(event: CallFailed, operand: Operand) -> bool:
    """True where the user's line calls a model with the tensor, and some line of its forward refused it."""
    from torch import nn

    entry = _entry_of(event)
    text = running_call(entry) if entry is not None else None
    if text is None or text.kind != "call" or not operand.expression:
        return False
    model = locals_of(event.frame).get(text.callee, event.frame.f_globals.get(text.callee))
    given = (*text.positional, *(value for _, value in text.keywords))
    return isinstance(model, nn.Module) and operand.expression in given


def _is_loss_argument(event: CallFailed, operand: Operand) -> bool:
    """True for a tensor that was given to a loss written by hand, rather than made in it."""
    code = event.frame.f_code
    return operand.expression in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] and _in_a_loss(event)


def _culprit(event: CallFailed, home: torch.device | None, context: Context) -> Operand | None:
    odd = [operand for operand in _all_operands(event, context) if _is_odd(operand.tensor, home)]
    if event.problem == "index-device":
        return next((operand for operand in event.operands if is_host(operand.tensor.device)), None)
    telling = [operand for operand in odd if operand.tensor.dim() > 0]
    return next(iter(telling or odd), None)


def _all_operands(event: CallFailed, context: Context) -> Iterator[Operand]:
    yield from event.operands
    if event.module is None:
        return
    name = context.subjects.model_name(event.module, event.frame)
    for attribute, tensor in _own_tensors(event.module):
        yield Operand(attribute, joined(name, attribute), tensor)


def _is_odd(tensor: torch.Tensor, home: torch.device | None) -> bool:
    if home is None:
        return False
    return not same(tensor.device, home)


def _unseen_factory(event: CallFailed, home: torch.device | None) -> Blame | None:
    """A host factory called within the failing expression itself, whose result no variable holds."""
    import torch

    entry = _entry_of(event) if home is not None else None
    text = running_call(entry) if entry is not None else None
    if text is None:
        return None
    for part in (text.callee, *text.positional, *(value for _, value in text.keywords)):
        for inner in _calls_in(part):
            found = origin_of(inner, event.frame, event.line)
            if found.factory is not None and not found.placed:
                code = "DEV002" if event.kind == "loss" else "DEV001" if event.module is not None else "DEV008"
                return Blame(code, inner, torch.device("cpu"), home, module=event.module, origin=found)
    return None


def _entry_of(event: CallFailed) -> TracebackType | FrameType | None:
    if event.error is None:
        return event.frame
    entry: TracebackType | None = event.traceback
    while entry is not None and entry.tb_frame is not event.frame:
        entry = entry.tb_next
    return entry


def _calls_in(expression: str | None) -> list[str]:
    """The calls within an expression, without those whose result is moved at once."""
    try:
        tree = ast.parse(expression or "", mode="eval")
    except SyntaxError:
        return []
    moved = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES
        for inner in ast.walk(node)
    }
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in moved]


def _holder(target: Any, event: CallFailed, context: Context) -> Holder | None:
    from deviceguard.naming.strays import holder_of

    return holder_of(target, _modules_in_sight(event, context))


def _frames(event: CallFailed) -> Iterator[FrameType]:
    if event.error is None:
        yield from outward(event.frame)
    current: TracebackType | None = event.traceback
    while current is not None:
        yield current.tb_frame
        current = current.tb_next


def _modules_in_sight(event: CallFailed, context: Context) -> Sequence[nn.Module]:
    from torch import nn

    found: dict[int, nn.Module] = {id(module): module for module in context.ledger.modules()}
    for frame in _frames(event):
        owner = locals_of(frame).get("self") if is_user_code(frame) else None
        if isinstance(owner, nn.Module):
            found.setdefault(id(owner), owner)
    for model, _ in context.ledger.models():
        for part in model.modules():
            found.setdefault(id(part), part)
    return list(found.values())
