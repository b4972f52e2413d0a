"""Which edit repairs a finding: one function for each kind of finding, and no edit where it is not certain."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from deviceguard.findings import Finding, Subject
from deviceguard.fixes.edits import (
    AddKeyword,
    Append,
    Edit,
    InsertAfter,
    InsertFirst,
    MoveAfter,
    RegisterBuffer,
    Wrap,
)
from deviceguard.fixes.source import Source, converts, mentions

Planner = Callable[[Finding, Source], list[Edit]]

_FACTORIES = frozenset({"zeros", "ones", "full", "empty", "arange", "linspace", "eye", "rand", "randn", "tensor"})
_OPTIMIZES = re.compile(r"\b(\w+)\.(?:named_)?parameters\(\)")


def edits_for(finding: Finding, source: Source) -> list[Edit]:
    """The edits that make a finding go away; none where they are not certain.

    Args:
        finding: what was found.
        source: the file it was found in.
    """
    planner = PLANNERS.get(finding.rule)
    if planner is None or finding.site is None or finding.site.via is not None:
        return []
    return planner(finding, source)


def _move(finding: Finding, source: Source) -> list[Edit]:
    """``.to(device)`` where the name gets its value."""
    name, line = _first_name(finding), _line(finding)
    if name is None or not _is_name(name):
        return []
    owner = name.rpartition(".")[0]
    if finding.rule == "DEV002" and finding.subjects[0].kind == "buffer" and owner:
        name = owner
    return _append_where_bound(source, name, line, None)


def _cast(finding: Finding, source: Source) -> list[Edit]:
    """``.to(torch.float32)`` where the name gets its value."""
    name, torch = _first_name(finding), source.torch()
    wanted = re.search(r"\.to\(torch\.(\w+)\)", finding.fix)
    if name is None or torch is None or wanted is None or not name.isidentifier():
        return []
    return _append_where_bound(source, name, _line(finding), f"{torch}.{wanted.group(1)}")


def _append_where_bound(source: Source, name: str, line: int, to: str | None) -> list[Edit]:
    found = _binding_of(source, name, line)
    if found is None:
        return []
    statement, value = found
    to = to or source.device(statement.lineno if value is not None else statement.lineno + 1)
    if to is None:
        return []
    if value is not None:
        return [Append(source.span(value), f".to({to})")]
    text = f"{name} = {name}.to({to})"
    if not isinstance(statement, ast.For):
        return [InsertAfter(source.start(statement), text)]
    return [InsertFirst(source.start(statement), text)] if statement.body[0].lineno > statement.lineno else []


def _binding_of(source: Source, name: str, line: int) -> tuple[ast.stmt, ast.expr | None] | None:
    if name.isidentifier():
        return source.binding(name, line)
    found = [
        (node, node.value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and ast.unparse(node.targets[0]) == name
    ]
    return found[0] if len(found) == 1 else None


def _factory(finding: Finding, source: Source) -> list[Edit]:
    """``device=`` for the factory that made it."""
    name = _first_name(finding)
    wanted = re.search(r"device=([\w.]+)\)$", finding.fix)
    found = source.binding(name, _line(finding)) if name is not None and name.isidentifier() else None
    if found is None or found[1] is None or not isinstance(found[1], ast.Call):
        return _move(finding, source)
    call = found[1]
    made_by = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    where = wanted.group(1) if wanted else source.device(found[0].lineno)
    if where is None or made_by not in _FACTORIES or any(k.arg in (None, "device") for k in call.keywords):
        return []
    if wanted and not _is_bound_before(source, where.split(".")[0], found[0].lineno):
        return []
    return [AddKeyword(source.span(call), "device", where)]


def _is_bound_before(source: Source, name: str, line: int) -> bool:
    scope = source.scope_at(line)
    arguments = [] if isinstance(scope, ast.Module) else scope.args.args
    return any(argument.arg == name for argument in arguments) or source.binding(name, line) is not None


def _buffer(finding: Finding, source: Source) -> list[Edit]:
    """``register_buffer`` in place of the assignment."""
    statement = source.statement_at(_line(finding))
    attribute = re.search(r'register_buffer\("(\w+)"', finding.fix)
    if attribute is None or not _is_in_constructor(statement, f"self.{attribute.group(1)}", source):
        return []
    assert statement is not None
    return [RegisterBuffer(source.start(statement), attribute.group(1))]


def _container(finding: Finding, source: Source) -> list[Edit]:
    """``nn.ModuleList`` or ``nn.ModuleDict`` around the container."""
    statement, nn = source.statement_at(_line(finding)), source.torch_nn()
    wanted = re.search(r"self\.(\w+) = nn\.(Module(?:List|Dict))\(", finding.fix)
    direct = re.search(r"\.(\w+)\[(?:\d+|'[^'.]+')\]$", _first_name(finding) or "")
    if wanted is None or nn is None or direct is None or direct.group(1) != wanted.group(1):
        return []
    if not _is_in_constructor(statement, f"self.{wanted.group(1)}", source):
        return []
    assert isinstance(statement, ast.Assign)
    return [Wrap(source.span(statement.value), f"{nn}.{wanted.group(2)}")]


def _is_in_constructor(statement: ast.stmt | None, target: str, source: Source) -> bool:
    """True for the one assignment of the target, in ``__init__`` behind the call of ``super().__init__``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    scope = source.scope_at(statement.lineno)
    if ast.unparse(statement.targets[0]) != target or getattr(scope, "name", "") != "__init__":
        return False
    called = [
        n.lineno for n in ast.walk(scope) if isinstance(n, ast.Call) and ast.unparse(n.func) == "super().__init__"
    ]
    return bool(called) and min(called) < statement.lineno


def _optimizer(finding: Finding, source: Source) -> list[Edit]:
    """The optimizer built behind the last move of its model."""
    subject = next((s for s in finding.subjects if s.made_at is not None and s.kind == "optimizer"), None)
    statement = source.statement_at(subject.made_at.line) if subject is not None and subject.made_at else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    name, model = ast.unparse(statement.targets[0]), _OPTIMIZES.search(ast.unparse(statement.value))
    block = source.block_of(statement)
    if model is None or not block or _shares_line(statement, block):
        return []
    after = block[[other is statement for other in block].index(True) + 1 :]
    behind: ast.stmt | None = None
    for other in after:
        if mentions(other, name):
            break
        if converts(other, model.group(1)):
            behind = other
    if behind is None or _shares_line(behind, block):
        return []
    return [MoveAfter(source.start(statement), source.start(behind))]


def _shares_line(statement: ast.stmt, block: list[ast.stmt]) -> bool:
    return any(
        other is not statement
        and other.lineno <= (statement.end_lineno or 0)
        and (other.end_lineno or 0) >= statement.lineno
        for other in block
    )


def _detach(finding: Finding, source: Source) -> list[Edit]:
    """``.detach()`` on what is added to the total, or kept in the list."""
    statement, name = source.statement_at(_line(finding)), _first_name(finding)
    kept = _kept_in(statement, name) if statement is not None and name is not None else None
    return [Append(source.span(kept), ".detach()")] if kept is not None else []


def _kept_in(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return statement.value if ast.unparse(statement.target) == name else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        is_append = isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1
        return call.args[0] if is_append and ast.unparse(call.func.value) == name else None  # type: ignore[attr-defined]
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.BinOp):
        total = statement.value
        if ast.unparse(statement.targets[0]) == name and isinstance(total.op, ast.Add):
            sides = [side for side in (total.left, total.right) if ast.unparse(side) != name]
            return sides[0] if len(sides) == 1 else None
    return None


def _pin(finding: Finding, source: Source) -> list[Edit]:
    """``pin_memory=True`` for the loader of the loop."""
    if "pin_memory=True" not in finding.fix:
        return []
    for loop in source.loops_around(_line(finding)):
        call = _loader_of(loop.iter, source, loop.lineno)
        if call is not None:
            given = [keyword.arg for keyword in call.keywords]
            return (
                [] if "pin_memory" in given or None in given else [AddKeyword(source.span(call), "pin_memory", "True")]
            )
    return []


def _loader_of(iterated: ast.expr, source: Source, line: int) -> ast.Call | None:
    """The construction of the loader that a loop goes through, also through ``enumerate``."""
    if isinstance(iterated, ast.Call) and ast.unparse(iterated.func) in ("enumerate", "tqdm") and iterated.args:
        iterated = iterated.args[0]
    if isinstance(iterated, ast.Name):
        found = source.binding(iterated.id, line)
        iterated = found[1] if found is not None and found[1] is not None else iterated
    is_loader = isinstance(iterated, ast.Call) and ast.unparse(iterated.func).rpartition(".")[2] == "DataLoader"
    return iterated if is_loader and isinstance(iterated, ast.Call) else None


def _first_name(finding: Finding) -> str | None:
    subject: Subject | None = finding.subjects[0] if finding.subjects else None
    return subject.name if subject is not None else None


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _line(finding: Finding) -> int:
    return finding.site.line if finding.site is not None else 0


PLANNERS: dict[str, Planner] = {
    "DEV001": _move,
    "DEV002": _move,
    "DEV003": _container,
    "DEV004": _buffer,
    "DEV007": _move,
    "DEV008": _factory,
    "DTY001": _cast,
    "DTY002": _cast,
    "OPT001": _optimizer,
    "PIP002": _pin,
    "SYN012": _detach,
}
"""By rule code; a rule that is not here has no edit that is certain."""
