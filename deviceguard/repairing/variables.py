"""Variables that hold a tensor which was left on the host: bound to the moved one, as the fix says."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Sequence
from types import FrameType

import torch

from deviceguard.backends.devices import is_host
from deviceguard.naming.frames import locals_of
from deviceguard.naming.provenance import tree_of
from deviceguard.repairing.constants import owns_its_memory


def rebind(name: str | None, frame: FrameType, old: torch.Tensor, new: torch.Tensor) -> Callable[[], None] | None:
    """Bind a variable to a tensor in place of another, as ``name = name.to(device)`` would.

    Only at the top level of a file, and only for a variable that is never written into and has no second name, so that
    nothing else could have changed it.

    Args:
        name: the user's expression for the tensor.
        frame: the user's frame.
        old: the tensor that it holds.
        new: what it is to hold.

    Returns:
        what takes it back; None where nothing was changed.
    """
    names = frame.f_globals
    if name is None or not name.isidentifier() or names.get(name) is not old:
        return None
    if locals_of(frame) is not names and name in locals_of(frame):
        return None
    if old.requires_grad or (is_host(old.device) and not owns_its_memory(old)) or not _is_simple(name, frame):
        return None
    names[name] = new
    held, former, dtype = weakref.ref(new), old.device, old.dtype

    def undo() -> None:
        present = names.get(name)
        if isinstance(present, torch.Tensor) and present is held():
            names[name] = present.to(former, dtype)

    return undo


def rebind_all(
    names: Sequence[str | None], frame: FrameType, replaced: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> Callable[[], None] | None:
    """:func:`rebind` for each of the tensors; takes all of them back, None where nothing was changed."""
    undos = [rebind(name, frame, old, new) for name, (old, new) in zip(names, replaced, strict=True)]
    made = [undo for undo in undos if undo is not None]
    if not made:
        return None

    def undo_all() -> None:
        for undo in made:
            undo()

    return undo_all


def _is_simple(name: str, frame: FrameType) -> bool:
    tree = tree_of(frame.f_code.co_filename, frame.f_globals)
    return tree is not None and not any(_shares(node, name) or _writes(node, name) for node in ast.walk(tree))


def _shares(node: ast.AST, name: str) -> bool:
    """True for ``other = name`` and ``name = other``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name):
        return False
    targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return name in (node.value.id, *targets)


def _writes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.AugAssign):
        return _is(node.target, name)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _is(node.value, name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is(node.func.value, name):
        return node.func.attr in ("numpy", "data_ptr", "share_memory_") or (
            node.func.attr.endswith("_") and not node.func.attr.endswith("__")
        )
    return isinstance(node, ast.keyword) and node.arg == "out" and _is(node.value, name)


def _is(node: ast.AST, name: str) -> bool:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == name
