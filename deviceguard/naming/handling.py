"""Whether the user's code expects an exception where it is raised, so that nobody should come between."""

from __future__ import annotations

import ast
from types import TracebackType

from deviceguard.naming.frames import is_user_code
from deviceguard.naming.provenance import tree_of

_CATCHES = frozenset({"Exception", "BaseException", "RuntimeError", "TypeError", "ValueError", "IndexError"})
_EXPECTS = frozenset({"raises", "suppress", "assertRaises", "assertRaisesRegex"})


def is_expected(traceback: TracebackType | None, error: BaseException) -> bool:
    """True where the innermost user's function calls in a ``try`` that catches such an error and goes on.

    Handlers that end in a bare ``raise`` do not count, and what functions further out do does not either: a program
    that logs whatever went wrong and ends does not expect it.
    """
    innermost: TracebackType | None = None
    while traceback is not None:
        if is_user_code(traceback.tb_frame):
            innermost = traceback
        traceback = traceback.tb_next
    if innermost is None:
        return False
    frame = innermost.tb_frame
    tree = tree_of(frame.f_code.co_filename, frame.f_globals)
    if tree is None:
        return False
    names = {cls.__name__ for cls in type(error).__mro__} | {"Error"}
    return any(_expects(node, innermost.tb_lineno, names) for node in ast.walk(tree))


def _expects(node: ast.AST, line: int, names: set[str]) -> bool:
    if isinstance(node, ast.Try) and _spans(node.body, line) and _same_function(node.body, line):
        return any(_goes_on(handler, names) for handler in node.handlers)
    if isinstance(node, ast.With) and _spans(node.body, line) and _same_function(node.body, line):
        called = [item.context_expr.func for item in node.items if isinstance(item.context_expr, ast.Call)]
        return any(ast.unparse(function).rpartition(".")[2] in _EXPECTS for function in called)
    return False


def _goes_on(handler: ast.ExceptHandler, names: set[str]) -> bool:
    caught = [] if handler.type is None else [ast.unparse(part) for part in _parts(handler.type)]
    if caught and not any(name.rpartition(".")[2] in names & (_CATCHES | names) for name in caught):
        return False
    return not any(isinstance(node, ast.Raise) for part in handler.body for node in ast.walk(part))


def _parts(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _spans(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _same_function(body: list[ast.stmt], line: int) -> bool:
    """False where the line stands in a function that is only defined there."""
    return not any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and node.lineno <= line <= (node.end_lineno or 0)
        for part in body
        for node in ast.walk(part)
    )
