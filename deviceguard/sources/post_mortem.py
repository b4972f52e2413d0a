"""Explains an exception that leaves the guarded block, from the frames of its traceback.

Costs nothing while nothing fails, and runs none of the user's code: names are looked up in frames and ``__dict__``.
"""

from __future__ import annotations

import ast
import dataclasses
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from deviceguard.backends.devices import is_host, same
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.events import CallFailed, Operand
from deviceguard.naming.expressions import CallText, running_call
from deviceguard.naming.frames import locals_of, origin, outward
from deviceguard.naming.objects import variable_of
from deviceguard.naming.provenance import binding_of, changes
from deviceguard.sources.losses import LOSSES
from deviceguard.sources.refusals import problem_of

_LOSS_NAMES = frozenset(function.__name__ for function in LOSSES)
_CHAIN = 8
CARRIED = "_deviceguard_refusal"
"""The attribute of what carries an error out of a thread, under which the error itself is kept with its frames."""
_DEPTH = 4
_GENERATED = "<eval_with_key>"
"""Part of the file name of code that ``torch.fx`` has generated."""


def examine(error: BaseException) -> CallFailed | None:
    """What PyTorch refused, to whom and with what; None where the exception is not of that kind."""
    refused = _refusal_in(error)
    if refused is None or refused.__traceback__ is None:
        return None
    return _failed_call(refused, _with_carried(refused.__traceback__))


def _with_carried(traceback: TracebackType) -> TracebackType:
    """The traceback, followed by that of the refusal in another thread which it was raised for."""
    entries = [traceback]
    while entries[-1].tb_next is not None:
        entries.append(entries[-1].tb_next)
    carrier = locals_of(entries[-1].tb_frame).get("self")
    inner = getattr(getattr(carrier, "__dict__", {}).get(CARRIED), "__traceback__", None)
    if inner is None:
        return traceback
    for entry in reversed(entries):
        inner = TracebackType(inner, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return inner


def _refusal_in(error: BaseException) -> Exception | None:
    """The refusal at the root of a chain of exceptions.

    A cause is followed to its end, so that an error which only wraps PyTorch's does not stand for it. The context of an
    error counts where the error itself is no refusal.
    """
    current: BaseException | None = error
    found: Exception | None = None
    for _ in range(_CHAIN):
        if current is None or isinstance(current, DeviceGuardError | DeviceGuardWarning):
            break
        if isinstance(current, Exception) and problem_of(current) != "other" and current.__traceback__ is not None:
            found = current
        following = current.__cause__
        if following is None and found is None and not current.__suppress_context__:
            following = current.__context__
        current = following
    return found


@dataclasses.dataclass(slots=True)
class _Entry:
    """One line of a traceback, or of the running stack."""

    frame: FrameType
    line: int
    traceback: TracebackType | FrameType


def examine_running(frame: FrameType, problem: str) -> CallFailed | None:
    """The call that is running, described as if it had been refused; None where no user's code has made it.

    Args:
        frame: where it runs.
        problem: what a refusal would be about, ``device``.
    """
    running = reversed([(each, each.f_lineno or 0, each) for each in outward(frame)])
    entries = [_Entry(*each) for each in running if origin(each[0].f_code.co_filename) != "guard"]
    return _described(entries, None, None, problem)


def _failed_call(error: Exception, traceback: TracebackType) -> CallFailed | None:
    return _described(_entries(traceback), error, traceback, problem_of(error))


def _described(
    entries: list[_Entry], error: Exception | None, traceback: TracebackType | None, problem: str
) -> CallFailed | None:
    users = [index for index, entry in enumerate(entries) if origin(entry.frame.f_code.co_filename) == "user"]
    while len(users) > 1 and _is_compiled(entries, users[-1]):
        users.pop()  # its lines are not those that run
    if not users:
        return None
    place, below = entries[users[-1]], entries[users[-1] + 1 :]
    text = running_call(place.traceback)
    failure = _Failure(error, traceback, problem, place, text)
    event = _in_optimizer(failure, below) or _in_module(failure, below) or _in_function(failure, below)
    event = event or _of_called_module(failure) or _in_expression(failure, below)
    return _climbed(event, entries[: users[-1] + 1])


def _is_compiled(entries: list[_Entry], index: int) -> bool:
    """True for a function that runs as a graph: it stands at its first line, and calls generated code."""
    code = entries[index].frame.f_code
    below = [entry.frame.f_code.co_filename for entry in entries[index + 1 :]]
    return entries[index].line == code.co_firstlineno and any(_GENERATED in name for name in below)


@dataclasses.dataclass(slots=True)
class _Failure:
    error: Exception | None
    traceback: TracebackType | None
    problem: str
    place: _Entry
    text: CallText | None

    def event(self, callee: str, kind: str, operands: list[Operand], **known: Any) -> CallFailed:
        return CallFailed(
            error=self.error,
            traceback=self.traceback,
            problem=self.problem,
            callee=callee,
            kind=kind,
            module=known.get("module"),
            optimizer=known.get("optimizer"),
            operands=operands,
            frame=self.place.frame,
            line=self.place.line,
        )


def _entries(traceback: TracebackType | None) -> list[_Entry]:
    found = []
    while traceback is not None:
        if origin(traceback.tb_frame.f_code.co_filename) != "guard":
            found.append(_Entry(traceback.tb_frame, traceback.tb_lineno, traceback))
        traceback = traceback.tb_next
    return found


def _in_optimizer(failure: _Failure, below: list[_Entry]) -> CallFailed | None:
    for entry in reversed(below):
        owner = locals_of(entry.frame).get("self")
        if isinstance(owner, Optimizer):
            method = "step" if entry.frame.f_code.co_name not in ("__init__", "add_param_group") else ""
            operands: list[Operand] = []
            for part in failure.text.positional[:1] if failure.text is not None and not method else ():
                _add(operands, "params", part, failure)
            callee = f"{type(owner).__name__}.{method}".rstrip(".")
            return failure.event(callee, "optimizer", operands, optimizer=owner)
    return None


def _in_module(failure: _Failure, below: list[_Entry]) -> CallFailed | None:
    for index, entry in reversed(list(enumerate(below))):
        owner = locals_of(entry.frame).get("self")
        if isinstance(owner, nn.Module) and entry.frame.f_code.co_name == "forward":
            if _GENERATED in entry.frame.f_code.co_filename and _is_compiler_in(below[:index]):
                continue
            direct = _is_called_directly(owner, below)
            operands = _operands_of_frame(entry.frame, failure, direct)
            kind = "loss" if isinstance(owner, nn.modules.loss._Loss) else "module"
            return failure.event(_class_of(owner), kind, operands, module=owner)
    return None


def _is_compiler_in(below: list[_Entry]) -> bool:
    """True for calls that led through ``torch.compile``, whose graphs know none of the user's names."""
    return any("_dynamo" in entry.frame.f_code.co_filename for entry in below)


def _of_called_module(failure: _Failure) -> CallFailed | None:
    """A call of a module that left no frame of its forward: compiled, traced, or run in another thread."""
    text = failure.text
    module = _value_of(text.callee, failure.place.frame) if text is not None and text.kind == "call" else None
    if not isinstance(module, nn.Module) or text is None:
        return None
    operands: list[Operand] = []
    for index, part in enumerate(text.positional):
        _add(operands, f"argument {index + 1}", part, failure)
    for name, part in text.keywords:
        _add(operands, name, part, failure)
    kind = "loss" if isinstance(module, nn.modules.loss._Loss) else "module"
    return failure.event(_class_of(module), kind, operands, module=module)


def _value_of(expression: str, frame: FrameType) -> Any:
    try:
        return lookup(ast.parse(expression, mode="eval").body, frame)
    except SyntaxError:
        return None


def _class_of(module: nn.Module) -> str:
    kind = type(module)
    return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.nn") else kind.__name__


def _is_called_directly(module: nn.Module, below: list[_Entry]) -> bool:
    """True when the module is the one the user's line calls, not a part of it."""
    first = next(
        (locals_of(e.frame).get("self") for e in below if isinstance(locals_of(e.frame).get("self"), nn.Module)), None
    )
    return first is module


def _in_function(failure: _Failure, below: list[_Entry]) -> CallFailed | None:
    for entry in below:
        code = entry.frame.f_code
        if code.co_name in ("backward", "grad") and ("autograd" in code.co_filename or "_tensor" in code.co_filename):
            return failure.event("backward", "backward", [])
    named = [e for e in below if e.frame.f_code.co_filename == nn.functional.__file__]
    if not named:
        return None
    entry = named[0]
    name = entry.frame.f_code.co_name
    operands = _operands_of_frame(entry.frame, failure, direct=True)
    return failure.event(f"F.{name}", "loss" if name in _LOSS_NAMES else "function", operands)


def _in_expression(failure: _Failure, below: list[_Entry]) -> CallFailed:
    text = failure.text
    if text is None:
        return failure.event(_library_callee(below) or "this line", "function", [])
    operands: list[Operand] = []
    if text.kind == "index":
        _add(operands, "self", text.callee, failure)
        for part in text.positional:
            _add(operands, "index", part, failure)
        return failure.event(f"{text.callee}[...]", "index", operands)
    if text.kind == "operator":
        for role, side in zip(("left", "right"), text.positional, strict=False):
            _add(operands, role, side, failure)
        return failure.event(" ".join((text.positional[0] or "?", text.callee, "...")), "operator", operands)
    base = text.callee.rpartition(".")[0]
    _add(operands, "self", base, failure)
    for index, part in enumerate(text.positional):
        _add(operands, f"argument {index + 1}", part, failure)
    for name, part in text.keywords:
        _add(operands, name, part, failure)
    kind = "loss" if text.callee.rpartition(".")[2] in _LOSS_NAMES else "function"
    return failure.event(text.callee, kind, operands)


def _library_callee(below: list[_Entry]) -> str | None:
    return below[0].frame.f_code.co_name if below else None


def _add(operands: list[Operand], role: str, expression: str | None, failure: _Failure) -> None:
    if not expression:
        return
    for text, value in _resolved(expression, failure.place.frame):
        operands.append(Operand(role, text, value))


def _resolved(expression: str, frame: FrameType) -> list[tuple[str, torch.Tensor]]:
    """The tensors an expression names, with the text of each part that could be looked up without running code."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return []
    whole = lookup(tree, frame)
    if isinstance(whole, torch.Tensor):
        return [(expression, whole)]
    if isinstance(whole, list | tuple):
        return [(f"{expression}[{i}]", item) for i, item in enumerate(whole) if isinstance(item, torch.Tensor)]
    if type(whole) is dict:
        return [(f"{expression}[{key!r}]", item) for key, item in whole.items() if isinstance(item, torch.Tensor)]
    found: list[tuple[str, torch.Tensor]] = []
    for part in ast.iter_child_nodes(tree):
        if isinstance(part, ast.expr) and not (isinstance(tree, ast.Call) and part is tree.func):
            found += _resolved(ast.unparse(part), frame)
        elif isinstance(tree, ast.Call) and isinstance(part, ast.Attribute):
            found += _resolved(ast.unparse(part.value), frame)
    return found


def lookup(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name or a chain of plain attributes and constant indices; None where code would have to run."""
    if isinstance(node, ast.Name):
        return locals_of(frame).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return _attribute(lookup(node.value, frame), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = lookup(node.value, frame)
        key = node.slice.value
        if type(base) is dict:
            return base.get(key)
        if type(base) in (list, tuple) and isinstance(key, int) and -len(base) <= key < len(base):
            return base[key]
    return None


def _attribute(owner: Any, name: str) -> Any:
    attributes = getattr(owner, "__dict__", None) if owner is not None else None
    if not isinstance(attributes, dict):
        return None
    if name in attributes:
        return attributes[name]
    for registry in ("_parameters", "_buffers", "_modules"):
        held = attributes.get(registry)
        if isinstance(held, dict) and name in held:
            return held[name]
    for cls in type(owner).__mro__:
        if name in vars(cls):
            shared = vars(cls)[name]
            return shared if isinstance(shared, torch.Tensor) or type(shared) in (list, tuple, dict) else None
    return None


def _operands_of_frame(frame: FrameType, failure: _Failure, direct: bool) -> list[Operand]:
    """The tensors among the arguments of a running torch function, with the user's words for them.

    Args:
        frame: the function's frame; its arguments still stand in its locals.
        failure: what failed, with the user's frame and call.
        direct: whether the user's line calls this function itself, so that positions correspond.
    """
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    offset = 1 if names and names[0] == "self" else 0
    operands: list[Operand] = []
    for position, name in enumerate(names):
        if position < offset:
            continue
        text = failure.text.argument(position - offset, name) if direct and failure.text is not None else None
        _collect(operands, name, text, locals_of(frame).get(name), failure)
    return operands


def _collect(
    operands: list[Operand], role: str, text: str | None, value: Any, failure: _Failure, depth: int = _DEPTH
) -> None:
    if isinstance(value, torch.Tensor):
        operands.append(Operand(role, text or _variable_in(failure.place.frame, value), value))
    elif isinstance(value, list | tuple) and depth:
        for index, item in enumerate(value):
            _collect(operands, f"{role}[{index}]", f"{text}[{index}]" if text else None, item, failure, depth - 1)
    elif isinstance(value, dict) and depth:
        for key, item in value.items():
            _collect(operands, f"{role}[{key!r}]", f"{text}[{key!r}]" if text else None, item, failure, depth - 1)


def _variable_in(frame: FrameType, value: torch.Tensor) -> str | None:
    return variable_of(value, frame)


def _climbed(event: CallFailed, users: list[_Entry]) -> CallFailed:
    """The event as seen from the line where the operand came in.

    An argument that a user's ``forward`` only passes on is reported where the model is called: that is where the batch
    was forgotten.
    """
    if event.kind not in ("module", "function", "operator", "loss") or event.problem not in ("device", "dtype"):
        return event
    for outer in reversed(users[:-1]):
        renamed = _one_frame_out(event, outer)
        if renamed is None:
            if origin(outer.frame.f_code.co_filename) == "user":
                break
            continue
        event = renamed
    return event


def _one_frame_out(event: CallFailed, outer: _Entry) -> CallFailed | None:
    code = event.frame.f_code
    if code.co_name != "forward" or origin(outer.frame.f_code.co_filename) != "user":
        return None
    arguments = code.co_varnames[: code.co_argcount]
    text = running_call(outer.traceback)
    if text is None or text.kind != "call":
        return None
    operands, moved = [], False
    for operand in event.operands:
        position = _passed_on(operand, event.frame, event.line, arguments, event.problem)
        expression = text.argument(position - 1, arguments[position]) if position else None
        if position and expression is None:  # given with a star
            expression = variable_of(operand.tensor, outer.frame)
        moved = moved or (expression is not None and _is_suspect(operand, event))
        operands.append(dataclasses.replace(operand, expression=expression or operand.expression))
    if not moved:
        return None
    return dataclasses.replace(event, operands=operands, frame=outer.frame, line=outer.line)


def _is_suspect(operand: Operand, event: CallFailed) -> bool:
    """True for an operand that does not go with the module, or with the other operands."""
    own = next(event.module.parameters(), None) if event.module is not None else None
    others = [own] if own is not None else [o.tensor for o in event.operands if o.tensor is not operand.tensor]
    if event.problem == "dtype":
        floats = [other for other in others if other.is_floating_point()]
        return any(other.dtype != operand.tensor.dtype for other in floats)
    if own is None and not is_host(operand.tensor.device):
        return False
    return any(not same(other.device, operand.tensor.device) for other in others)


def _passed_on(operand: Operand, frame: FrameType, line: int, arguments: tuple[str, ...], problem: str) -> int:
    """Position of the argument an operand is, 0 when it is something made in the function."""
    name = operand.expression or ""
    if name not in arguments[1:]:
        return 0
    bound, value = binding_of(name, frame, line)
    if bound is not None and not (_is_method_of(value, name) and not changes(value, problem)):
        return 0
    return arguments.index(name)


def _is_method_of(value: ast.AST | None, name: str) -> bool:
    """True for ``name.method(...)``."""
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Attribute) and ast.unparse(function.value) == name
