"""Marks on the nodes of autograd graphs, to see which graphs outlive their step. Nothing is kept alive by it.

A mark is an object in the node's ``metadata``, which belongs to the node: when the graph goes, the mark goes, and the
weak reference to it dies. Nodes themselves cannot be referred to weakly.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

_KEY = "deviceguard"
_MOST_MARKS = 512
_MOST_NODES = 256


class _Mark:
    """Lies in the metadata of a node."""

    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


class GraphMarks:
    """The graphs of the latest losses and outputs."""

    def __init__(self) -> None:
        self._marks: deque[weakref.ref[_Mark]] = deque(maxlen=_MOST_MARKS)
        self.first_step = -1

    def put(self, tensor: Any, step: int) -> None:
        """Mark the graph of a tensor as made in a step."""
        node = tensor.grad_fn
        if node is None or _KEY in node.metadata:
            return
        mark = node.metadata[_KEY] = _Mark(step)
        self._marks.append(weakref.ref(mark))

    def steps_alive(self, before: int) -> set[int]:
        """The steps before a given one whose graphs are still there."""
        alive = [(reference, reference()) for reference in self._marks]
        self._marks = deque((reference for reference, mark in alive if mark is not None), maxlen=_MOST_MARKS)
        return {mark.step for _, mark in alive if mark is not None and mark.step < before}

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()


def reach(tensor: Any) -> int:
    """How many marked graphs of different steps a tensor's own graph reaches."""
    return len({mark.step for mark in _marks_below(getattr(tensor, "grad_fn", None))})


def _marks_below(node: Any) -> Iterator[_Mark]:
    waiting = deque([node] if node is not None else [])
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        current = waiting.popleft()
        if current in seen:
            continue
        seen.add(current)
        mark = current.metadata.get(_KEY)
        if mark is not None:
            yield mark
        waiting.extend(following for following, _ in current.next_functions if following is not None)
