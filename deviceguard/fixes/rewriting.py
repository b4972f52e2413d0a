"""Carries out edits on a file's concrete syntax tree, so that formatting and comments stay."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from deviceguard.fixes.edits import (
    AddKeyword,
    Append,
    Edit,
    InsertAfter,
    InsertFirst,
    MoveAfter,
    RegisterBuffer,
    Span,
    Start,
    Wrap,
)

_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def rewritten(text: str, edits: Sequence[Edit]) -> str:
    """The text of a file with the edits made.

    Raises:
        libcst.ParserSyntaxError: the text is no Python.
    """
    wrapper = MetadataWrapper(cst.parse_module(text))
    return wrapper.visit(_Rewriter(edits)).code


class _Rewriter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, edits: Sequence[Edit]) -> None:
        super().__init__()
        self._expressions: dict[Span, list[Append | Wrap | AddKeyword]] = {}
        self._buffers: dict[Start, str] = {}
        self._first: dict[Start, list[str]] = {}
        self._after: dict[Start, list[str]] = {}
        self._moves: dict[Start, Start] = {}
        self._moved: dict[Start, cst.SimpleStatementLine] = {}
        for edit in dict.fromkeys(edits):
            self._sort_in(edit)

    def _sort_in(self, edit: Edit) -> None:
        if isinstance(edit, Append | Wrap | AddKeyword):
            self._expressions.setdefault(edit.span, []).append(edit)
        elif isinstance(edit, RegisterBuffer):
            self._buffers[edit.start] = edit.name
        elif isinstance(edit, InsertFirst):
            self._first.setdefault(edit.start, []).append(edit.text)
        elif isinstance(edit, InsertAfter):
            self._after.setdefault(edit.start, []).append(edit.text)
        elif isinstance(edit, MoveAfter):
            self._moves[edit.start] = edit.behind

    def _span(self, node: cst.CSTNode) -> Span:
        place = self.get_metadata(PositionProvider, node)
        return place.start.line, place.start.column, place.end.line, place.end.column

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> object:  # type: ignore[override]
        changed = super().on_leave(original, updated)
        if isinstance(original, cst.BaseExpression) and isinstance(changed, cst.BaseExpression):
            return self._expression(original, changed)
        if isinstance(original, cst.Assign) and isinstance(changed, cst.Assign):
            return self._assignment(original, changed)
        if isinstance(original, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return self._statement(original, changed)
        return changed

    def _expression(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        for edit in self._expressions.get(self._span(original), ()) if self._expressions else ():
            updated = _edited(updated, edit)
        return updated

    def _assignment(self, original: cst.Assign, updated: cst.Assign) -> cst.CSTNode:
        name = self._buffers.get(self._span(original)[:2])
        if name is None:
            return updated
        call = cst.parse_expression(f'self.register_buffer("{name}", value, persistent=False)')
        assert isinstance(call, cst.Call)
        first, second, third = call.args
        return cst.Expr(call.with_changes(args=[first, second.with_changes(value=updated.value), third]))

    def _statement(self, original: cst.CSTNode, updated: object) -> object:
        start = self._span(original)[:2]
        if isinstance(updated, cst.For) and start in self._first:
            updated = _with_first(updated, self._first[start])
        if start in self._moves and isinstance(updated, cst.SimpleStatementLine):
            self._moved[start] = updated
            return cst.RemoveFromParent()
        more = [cst.parse_statement(text) for text in self._after.get(start, ())]
        more += [
            self._moved[moved] for moved, behind in self._moves.items() if behind == start and moved in self._moved
        ]
        if more and isinstance(updated, cst.BaseStatement):
            return cst.FlattenSentinel([updated, *more])
        return updated


def _edited(node: cst.BaseExpression, edit: Append | Wrap | AddKeyword) -> cst.BaseExpression:
    if isinstance(edit, Append):
        pattern = cst.parse_expression(f"value{edit.text}")
        return _with_value(pattern, node if isinstance(node, _ATOMS) or node.lpar else _bracketed(node))
    if isinstance(edit, Wrap):
        return cst.Call(cst.parse_expression(edit.function), [cst.Arg(node)])
    return _with_keyword(node, edit) if isinstance(node, cst.Call) else node


def _with_value(pattern: cst.BaseExpression, node: cst.BaseExpression) -> cst.BaseExpression:
    """``value.to(device)`` with the node in the place of ``value``."""
    assert isinstance(pattern, cst.Call)
    assert isinstance(pattern.func, cst.Attribute)
    return pattern.with_changes(func=pattern.func.with_changes(value=node))


def _bracketed(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _with_keyword(call: cst.Call, edit: AddKeyword) -> cst.Call:
    """The call with one more argument, laid out as the others are."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(cst.parse_expression(edit.value), keyword=cst.Name(edit.name), equal=equal)
    if not call.args:
        return call.with_changes(args=[new])
    *before, last = call.args
    trailing = last.comma
    between = before[-1].comma if before else cst.Comma(whitespace_after=_gap(call))
    return call.with_changes(args=[*before, last.with_changes(comma=between), new.with_changes(comma=trailing)])


def _gap(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """The space between two arguments of a call that has one so far."""
    before = call.whitespace_before_args
    return before if isinstance(before, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")


def _with_first(loop: cst.For, texts: list[str]) -> cst.For:
    if not isinstance(loop.body, cst.IndentedBlock):
        return loop
    new = [cst.parse_statement(text) for text in texts]
    return loop.with_changes(body=loop.body.with_changes(body=[*new, *loop.body.body]))
