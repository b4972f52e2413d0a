"""Imports may only go down, and device types have names in two folders only."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "deviceguard"
LAYERS = (
    {"errors", "findings", "events", "busy", "decorating", "remedies", "repairs", "transfer_policy"},
    {"naming", "backends"},
    {"steps", "step_times", "ledger", "sources", "rules", "context", "repairing"},
    {"settings", "allowing", "ignoring", "reports", "policies", "fixes"},
    {"engine", "hub", "control"},
    {"session"},
    {"guard", "standing", "transferring", "autostart", "cli", "pytest_plugin", "testing", "integrations"}
    | {"__init__", "__main__"},
)
"""Lowest first. A module imports from lower layers, and from its own layer what ``SIDEWAYS`` does not forbid."""

SIDEWAYS = {
    ("sources", "rules"),
    ("sources", "ledger"),
    ("sources", "steps"),
    ("rules", "sources"),
    ("ledger", "rules"),
    ("ledger", "sources"),
    ("steps", "ledger"),
    ("steps", "rules"),
    ("steps", "sources"),
    ("step_times", "ledger"),
    ("step_times", "rules"),
    ("step_times", "sources"),
    ("backends", "naming"),
    ("naming", "backends"),
    ("settings", "reports"),
    ("settings", "policies"),
    ("reports", "policies"),
}
SIMULATION = "simulate"
STAND_IN = PACKAGE / SIMULATION / "torch_xla"
"""Imported under another name while an XLA device is simulated, and so by relative imports in itself."""
TYPES = {"cuda", "hip", "hpu", "mps", "npu", "privateuseone", "xla", "xpu"}
TYPE_QUESTIONS = {f"is_{name}" for name in TYPES}
MAY_NAME_DEVICES = {"backends", SIMULATION}

FILES = tuple(sorted(PACKAGE.rglob("*.py")))


def part_of(path: pathlib.Path) -> str:
    """``rules`` for a file in that folder, ``engine`` for that file."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST, stand_in: bool = False) -> Iterator[tuple[str, int]]:
    """The parts of deviceguard that are imported at run time, wherever in the file, with the line."""
    for node in nodes_at_run_time(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "deviceguard":
                names = [f"deviceguard.{alias.name}" for alias in node.names]
            assert node.level == 0 or stand_in, "relative import"
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("deviceguard."):
                yield name.split(".")[1], node.lineno


def nodes_at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from nodes_at_run_time(node)


def layer_of(part: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def is_module(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def wrong_imports(part: str, tree: ast.AST, stand_in: bool = False) -> list[str]:
    wrong = []
    for imported, line in imported_parts(tree, stand_in):
        if imported == part or not is_module(imported):
            continue
        if part == SIMULATION or (imported != SIMULATION and not may_import(part, imported)):
            wrong.append(f"line {line}: {part} imports {imported}")
        if imported == SIMULATION and layer_of(part) < layer_of("settings"):
            wrong.append(f"line {line}: {part} imports the simulation")
    return wrong


def may_import(part: str, imported: str) -> bool:
    return layer_of(imported) <= layer_of(part) and (part, imported) not in SIDEWAYS


def docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))


def method_names(tree: ast.AST) -> Iterator[ast.AST]:
    """Names of methods, not of devices: beside ``to`` in a collection, or looked up on ``Tensor``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            if any(isinstance(item, ast.Constant) and item.value == "to" for item in node.elts):
                yield from node.elts
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]).endswith("Tensor"):
            yield from node.args


def named_devices(tree: ast.AST) -> list[str]:
    allowed = {id(node) for node in [*docstrings(tree), *method_names(tree)]}
    named = []
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in allowed
        if is_text and node.value.split(":")[0] in TYPES:
            named.append(f"line {node.lineno}: {node.value!r}")
        if isinstance(node, ast.Attribute) and node.attr in TYPE_QUESTIONS:
            named.append(f"line {node.lineno}: .{node.attr}")
    return named


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_go_down(path):
    assert wrong_imports(part_of(path), ast.parse(path.read_text()), STAND_IN in path.parents) == []


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if part_of(path) not in MAY_NAME_DEVICES],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_device_types_are_named_in_backends_and_simulation_only(path):
    assert named_devices(ast.parse(path.read_text())) == []


def test_every_part_has_a_layer():
    parts = {part_of(path) for path in FILES} - {SIMULATION}

    assert parts <= set().union(*LAYERS)


@pytest.mark.parametrize(
    ("part", "source", "wrong"),
    [
        ("rules", "from deviceguard.engine import Engine", True),
        ("rules", "from deviceguard.sources.calls import Calls", True),
        ("sources", "def f():\n    from deviceguard.rules.registry import expand", True),
        ("simulate", "from deviceguard.events import Event", True),
        ("rules", "import deviceguard.simulate", True),
        ("findings", "from deviceguard import engine", True),
        ("rules", "if TYPE_CHECKING:\n    from deviceguard.context import Context", False),
        ("rules", "from deviceguard.findings import Finding", False),
        ("cli", "from deviceguard.simulate import simulate", False),
        ("reports", "from deviceguard import __version__", False),
    ],
)
def test_the_check_of_imports_itself(part, source, wrong):
    assert bool(wrong_imports(part, ast.parse(source))) == wrong


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("kind = 'cuda'", True),
        ("kind = 'xla:1'", True),
        ("if tensor.is_cuda: pass", True),
        ("'''On cuda.'''", False),
        ("text = 'a message about cuda'", False),
        ("moves = {'to', 'cuda', 'cpu'}", False),
        ("kinds = {'cuda', 'cpu'}", True),
        ("hasattr(Tensor, 'xpu')", False),
    ],
)
def test_the_check_of_names_itself(source, named):
    assert bool(named_devices(ast.parse(source))) == named
