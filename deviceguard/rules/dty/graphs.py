"""Questions about the dtypes in an autograd graph, answered from its nodes without running anything."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MOST = 5000
_CASTS = ("ToCopyBackward", "TypeBackward")


@dataclasses.dataclass(frozen=True, slots=True)
class Promotion:
    """An operation at which float32 became float64 without a cast.

    Attributes:
        operation: name of the node.
        culprit: the float64 tensor it saved for backward, if it saved one.
        shape: the shape of its result.
    """

    operation: str
    culprit: torch.Tensor | None
    shape: tuple[int, ...]


def nodes_of(root: torch.Tensor, most: int = _MOST) -> Iterator[Any]:
    """The nodes of a graph from its root, nearest first, each once."""
    queue = deque([root.grad_fn])
    seen: set[Any] = set()
    while queue and len(seen) < most:
        node = queue.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        queue.extend(following for following, _ in node.next_functions)


def dtype_of(node: Any) -> torch.dtype | None:
    """The dtype of what a node computed in the forward pass."""
    leaf = getattr(node, "variable", None)
    if leaf is not None:
        return leaf.dtype
    metadata = getattr(node, "_input_metadata", ())
    return metadata[0].dtype if metadata else None


def leaves_of(root: torch.Tensor) -> list[torch.Tensor]:
    """The leaves a graph leads to."""
    return [node.variable for node in nodes_of(root) if getattr(node, "variable", None) is not None]


def has_dtype(root: torch.Tensor, dtype: torch.dtype) -> bool:
    """True when something on the way to the root was computed in a dtype."""
    return any(dtype_of(node) == dtype for node in nodes_of(root))


def find_promotion(root: torch.Tensor) -> Promotion | None:
    """The first operation below a float64 root where float32 became float64; None when that was asked for.

    A cast that is written out is a node of its own in the graph. So a float64 node of another kind with a float32 input
    is a promotion.
    """
    import torch

    for node in nodes_of(root):
        if dtype_of(node) != torch.float64 or getattr(node, "variable", None) is not None:
            continue
        inputs = [dtype_of(following) for following, _ in node.next_functions if following is not None]
        name = type(node).__name__
        if not inputs or torch.float64 in inputs or any(cast in name for cast in _CASTS):
            continue
        if any(dtype in (torch.float32, torch.float16, torch.bfloat16) for dtype in inputs):
            if not _promotes(name):
                continue
            return Promotion(name, _saved_wide(node), tuple(node._input_metadata[0].shape))
    return None


def _promotes(name: str) -> bool:
    """True for kinds of operation that promote by their operands; reductions take ``dtype=``, which is a wish."""
    plain = ("Mul", "Add", "Sub", "Div", "Pow", "Where", "Lerp", "Addcmul", "Addcdiv", "Cat", "Stack", "Maximum")
    return name.startswith(plain) or name.startswith(("Minimum", "Atan2", "Fmod", "Remainder", "Rsub", "Xlogy"))


def _saved_wide(node: Any) -> torch.Tensor | None:
    import torch

    for name in ("_saved_self", "_saved_other", "_saved_exponent", "_saved_tensor1", "_saved_tensor2"):
        try:
            value = getattr(node, name, None)
        except RuntimeError:  # freed by an earlier backward
            continue
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value.dim() > 0:
            return value
    return None
