"""The user's own words for what a frame is doing now: the arguments of its call, the sides of its operator."""

from __future__ import annotations

import ast
import dataclasses
import dis
from types import FrameType, TracebackType
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class CallText:
    """What stands in the source at the instruction a frame is executing.

    Attributes:
        kind: ``call``, ``operator``, ``index`` or ``other``.
        callee: text of what is called (``model``, ``F.mse_loss``), the operator's symbol, or the indexed expression.
        positional: text of each positional argument; None from the first starred one on.
        keywords: text of each keyword argument.
    """

    kind: str
    callee: str
    positional: tuple[str | None, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()

    def argument(self, position: int, name: str | None = None) -> str | None:
        """The text given for a parameter, by keyword if it was, else by position."""
        for keyword, text in self.keywords:
            if keyword == name:
                return text
        return self.positional[position] if 0 <= position < len(self.positional) else None


_BEFORE_CALL = dis.opmap.get("PRECALL")
"""The instruction before each call, in Python 3.11 only."""
_TO_CALL = 4
"""Bytes from it to the call: itself and its one cache entry."""
_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def running_node(where: FrameType | TracebackType) -> ast.AST | None:
    """The syntax node a frame is executing; None when the source is missing or cannot be matched."""
    import executing

    try:
        node: Any = executing.Source.executing(_at_the_call(where)).node
    except Exception:
        return None
    return node if isinstance(node, ast.AST) else None


def _at_the_call(where: FrameType | TracebackType) -> FrameType | TracebackType:
    """The same place, with the instruction that calls.

    A call of a builtin that Python 3.11 has specialised, which it does after some turns of a loop, is made by the
    instruction before it.
    """
    if _BEFORE_CALL is None:
        return where
    if isinstance(where, TracebackType):
        frame, instruction, line = where.tb_frame, where.tb_lasti, where.tb_lineno
    else:
        frame, instruction, line = where, where.f_lasti, where.f_lineno or 0
    if instruction < 0 or frame.f_code.co_code[instruction] != _BEFORE_CALL:
        return where
    return TracebackType(None, frame, instruction + _TO_CALL, line)


def running_call(where: FrameType | TracebackType) -> CallText | None:
    """What the frame is calling, in the user's words."""
    node = running_node(where)
    return None if node is None else _describe(node)


def _describe(node: ast.AST) -> CallText | None:
    if isinstance(node, ast.Call):
        positional: list[str | None] = []
        starred = False
        for argument in node.args:
            starred = starred or isinstance(argument, ast.Starred)
            positional.append(None if starred else ast.unparse(argument))
        keywords = tuple((k.arg, ast.unparse(k.value)) for k in node.keywords if k.arg)
        return CallText("call", ast.unparse(node.func), tuple(positional), keywords)
    if isinstance(node, ast.BinOp):
        sides = (ast.unparse(node.left), ast.unparse(node.right))
        return CallText("operator", _SYMBOLS.get(type(node.op), "?"), sides)
    if isinstance(node, ast.AugAssign):
        sides = (ast.unparse(node.target), ast.unparse(node.value))
        return CallText("operator", _SYMBOLS.get(type(node.op), "?") + "=", sides)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides = (ast.unparse(node.left), ast.unparse(node.comparators[0]))
        return CallText("operator", _SYMBOLS.get(type(node.ops[0]), "?"), sides)
    if isinstance(node, ast.Subscript):
        return CallText("index", ast.unparse(node.value), (ast.unparse(node.slice),))
    return CallText("other", type(node).__name__)
