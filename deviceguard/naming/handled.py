"""What a running line is doing to a tensor, in the user's words: ``loss`` for ``loss.item()`` or ``f"{loss:.3f}"``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Any

from deviceguard.naming.attribution import Charge
from deviceguard.naming.expressions import running_node
from deviceguard.naming.frames import locals_of
from deviceguard.naming.objects import variable_of

_LONGEST = 60
_SCALARS = frozenset({"alpha", "beta", "value"})


def handled(tensor: object, frame: FrameType) -> str | None:
    """The user's expression for a tensor that the frame's running line reads, moves or shows.

    Args:
        tensor: the tensor.
        frame: the user's frame.

    Returns:
        ``loss``, ``(pred == y).sum()``, ``net.bn.running_mean``; None where nothing fits.
    """
    node = running_node(frame)
    found = _of_node(node, tensor, frame) if node is not None else None
    if found is None:
        found = _of_statements(running_statements(frame), tensor, frame)
    return _short(found) or variable_of(tensor, frame)


def handed(tensor: object, charged: Charge) -> str | None:
    """As :func:`handled`, for a call that is charged to a line: what a library handles by itself has no name there.

    Args:
        tensor: the tensor.
        charged: whose doing the call is.

    Returns:
        None where the line does not show it.
    """
    return handled(tensor, charged.frame) if charged.direct else variable_of(tensor, charged.frame)


def running_statements(frame: FrameType) -> list[ast.stmt]:
    """The statements of the line a frame is executing; empty where the source is missing."""
    import executing

    try:
        found = executing.Source.executing(frame).statements
    except Exception:
        return []
    return sorted(found or (), key=lambda statement: statement.lineno)


def called(frame: FrameType) -> str | None:
    """Name of the function the frame is calling: ``max``, ``loss.item``; None where it is not calling one."""
    node = running_node(frame)
    return ast.unparse(node.func) if isinstance(node, ast.Call) else None


def value_of(node: ast.AST, frame: FrameType) -> Any:
    """The value of a plain name in a frame; None for anything else."""
    if isinstance(node, ast.Name):
        return locals_of(frame).get(node.id, frame.f_globals.get(node.id))
    return None


def _of_node(node: ast.AST, tensor: object, frame: FrameType) -> str | None:
    if isinstance(node, ast.Call):
        return _of_call(node, tensor, frame)
    if isinstance(node, ast.Subscript):
        inside = value_of(node.slice, frame) is tensor
        return ast.unparse(node.slice if inside else node.value)
    if isinstance(node, ast.Compare):
        return ast.unparse(node)
    if isinstance(node, ast.UnaryOp):
        return ast.unparse(node.operand)
    return None


def _of_call(node: ast.Call, tensor: object, frame: FrameType) -> str | None:
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    for argument in given:
        if value_of(argument, frame) is tensor:
            return ast.unparse(argument)
    for keyword in node.keywords:
        if keyword.arg in _SCALARS:
            return ast.unparse(keyword.value)
    if isinstance(node.func, ast.Attribute) and value_of(node.func.value, frame) is tensor:
        return ast.unparse(node.func.value)
    telling = [argument for argument in given if not isinstance(argument, ast.Constant)]
    if isinstance(node.func, ast.Name):
        return ast.unparse(telling[0]) if len(telling) == 1 else None
    if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value, frame):
        return ast.unparse(node.func.value)
    return ast.unparse(telling[0]) if len(telling) == 1 else None


def _is_module(node: ast.AST, frame: FrameType) -> bool:
    return type(value_of(node, frame)).__name__ == "module"


def _of_statements(statements: list[ast.stmt], tensor: object, frame: FrameType) -> str | None:
    names = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name)]
    for name in names:
        if value_of(name, frame) is tensor:
            return name.id
    for statement in statements:
        if isinstance(statement, ast.If | ast.While | ast.Assert):
            return ast.unparse(statement.test)
        shown = list(_shown(statement))
        if len(shown) == 1:
            return shown[0]
    return None


def _shown(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.FormattedValue) and not isinstance(node.value, ast.Constant):
            yield ast.unparse(node.value)


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= _LONGEST:
        return text
    return text[: _LONGEST - 3] + "..."
