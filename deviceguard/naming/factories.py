"""Which expressions make a fresh tensor on the default device: ``torch.zeros(3)``, ``torch.triu(torch.ones(t, t))``."""

from __future__ import annotations

import ast
import dataclasses
from types import FrameType
from typing import Any

from deviceguard.naming.frames import locals_of

_FACTORIES = frozenset(
    {
        *("tensor", "as_tensor", "zeros", "ones", "full", "empty", "arange", "linspace", "logspace", "eye", "rand"),
        *("randn", "randint", "randperm", "normal", "from_numpy", "tril_indices", "triu_indices", "FloatTensor"),
        *("LongTensor", "Tensor", "scalar_tensor", "bernoulli", "multinomial", "hann_window", "hamming_window"),
        *("range", "bartlett_window", "blackman_window", "kaiser_window", "complex", "frombuffer", "BoolTensor"),
        *("IntTensor", "DoubleTensor", "HalfTensor", "generate_square_subsequent_mask"),
    }
)
_MOVES = frozenset({"to", "cuda", "cpu", "xpu", "type", "type_as"})
"""Methods after which a tensor may be anywhere."""

_UNKNOWN = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Factory:
    """A call that makes a fresh tensor.

    Attributes:
        name: as the user writes it: ``torch.zeros``.
        placed: True when the call names a device.
        node: the call.
    """

    name: str
    placed: bool
    node: ast.Call


def factory_in(value: ast.AST | None, frame: FrameType | None = None) -> Factory | None:
    """The factory an expression takes its device from; None where it takes it from something else.

    Looks through methods that stay on a device, through functions of tensors, through operators, and into the branch of
    a conditional expression that was taken.

    Args:
        value: the expression.
        frame: where it was evaluated, to look up plain names in.
    """
    if isinstance(value, ast.Call):
        return _in_call(value, frame)
    return next((found for part in _parts(value, frame) if (found := factory_in(part, frame)) is not None), None)


def _parts(value: ast.AST | None, frame: FrameType | None) -> list[ast.expr]:
    if isinstance(value, ast.IfExp):
        taken = evaluated(value.test, frame)
        if taken is None or isinstance(taken, bool):
            return [value.body if taken else value.orelse]
        return [value.body, value.orelse]
    if isinstance(value, ast.BinOp):
        return [value.left, value.right]
    if isinstance(value, ast.Compare):
        return [value.left, *value.comparators]
    if isinstance(value, ast.UnaryOp):
        return [value.operand]
    return [value.value] if isinstance(value, ast.Subscript) else []


def _in_call(value: ast.Call, frame: FrameType | None) -> Factory | None:
    called = value.func
    if not isinstance(called, ast.Attribute):
        return None
    if called.attr in _FACTORIES and _is_namespace(called.value):
        given = next((evaluated(k.value, frame) for k in value.keywords if k.arg == "device"), None)
        return Factory(ast.unparse(called), given is not None, value)
    if _is_namespace(called.value):
        return next((found for part in value.args if (found := factory_in(part, frame)) is not None), None)
    if called.attr in _MOVES and not _only_casts(value):
        return None
    return factory_in(called.value, frame)


def _is_namespace(node: ast.expr) -> bool:
    """True for ``torch``, ``F`` and ``nn.Transformer``: what is called is a function, not a method of a tensor."""
    text = ast.unparse(node)
    return text in ("torch", "F", "nn.functional", "torch.nn.functional") or text.endswith("nn.Transformer")


def _only_casts(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return len(given) == 1 and ast.unparse(given[0]).startswith("torch.") and not isinstance(given[0], ast.Call)


def evaluated(node: ast.expr, frame: FrameType | None) -> Any:
    """The value of a constant, a plain name or a conditional of these; an unknown object for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and frame is not None:
        return locals_of(frame).get(node.id, frame.f_globals.get(node.id, _UNKNOWN))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = evaluated(node.operand, frame)
        return not value if value is None or isinstance(value, bool) else _UNKNOWN
    if isinstance(node, ast.IfExp):
        taken = evaluated(node.test, frame)
        if taken is None or isinstance(taken, bool):
            return evaluated(node.body if taken else node.orelse, frame)
    return _UNKNOWN
