"""The few kinds of edits, each at a place of a file as it stands."""

from __future__ import annotations

import dataclasses

Span = tuple[int, int, int, int]
"""First line, first column, last line, column behind the end; lines from 1, columns from 0, in characters."""
Start = tuple[int, int]
"""Line and column at which a statement begins."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """Base of all edits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Append(Edit):
    """Put something behind an expression: ``.to(device)``, ``.detach()``.

    Attributes:
        span: the expression.
        text: what follows it; it begins with a dot.
    """

    span: Span
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Wrap(Edit):
    """Call something with an expression: ``nn.ModuleList(...)``.

    Attributes:
        span: the expression.
        function: what is called.
    """

    span: Span
    function: str


@dataclasses.dataclass(frozen=True, slots=True)
class AddKeyword(Edit):
    """Give a call another keyword argument.

    Attributes:
        span: the call.
        name: the keyword.
        value: text of its value.
    """

    span: Span
    name: str
    value: str


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterBuffer(Edit):
    """Make ``self.name = value`` a ``self.register_buffer("name", value, persistent=False)``.

    Attributes:
        start: where the assignment begins.
        name: the attribute.
    """

    start: Start
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class InsertFirst(Edit):
    """Put a statement first into the body of a loop.

    Attributes:
        start: where the loop begins.
        text: the statement.
    """

    start: Start
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class InsertAfter(Edit):
    """Put a statement behind another.

    Attributes:
        start: where that statement begins.
        text: the new one.
    """

    start: Start
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class MoveAfter(Edit):
    """Move a statement behind a later one of the same block.

    Attributes:
        start: where the statement begins.
        behind: where the later one begins.
    """

    start: Start
    behind: Start
