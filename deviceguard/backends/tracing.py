"""The questions the guard asks of a backend that collects operations into graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True, slots=True)
class GraphCounts:
    """How much the tracing runtime of this process has done so far.

    Attributes:
        markers: step markers reached.
        graphs: graphs run, compiled for it or taken from the cache.
        compiled: graphs compiled.
    """

    markers: int = 0
    graphs: int = 0
    compiled: int = 0

    def since(self, earlier: GraphCounts) -> GraphCounts:
        """What was added after ``earlier``; counters that the program cleared in between start at zero."""
        return GraphCounts(
            _added(self.markers, earlier.markers),
            _added(self.graphs, earlier.graphs),
            _added(self.compiled, earlier.compiled),
        )


def _added(now: int, before: int) -> int:
    return now - before if now >= before else now


class Tracing:
    """What a tracing backend tells. Reading a figure neither runs anything nor resets it; no answer ever raises.

    Attributes:
        package: the module whose import makes the backend available.
        sync_call: how the program marks a step, as a person writes it.
        loader: the loader that uploads in the background and marks steps, as a person writes it.
        loader_module: the module that has it.
        dynamic_ops: host fallbacks whose result has a shape that depends on values.
        reads: counters of :meth:`fallbacks` that are reads of a value and no lack of the device.
        data_numbers: names of functions whose Python numbers are data of the graph, not part of it.
    """

    package: ClassVar[str]
    sync_call: ClassVar[str]
    loader: ClassVar[str]
    loader_module: ClassVar[str]
    dynamic_ops: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]] = frozenset()
    data_numbers: ClassVar[frozenset[str]] = frozenset()

    def is_loaded(self) -> bool:
        """True once the program imported the package."""
        raise NotImplementedError

    def markers(self) -> Sequence[tuple[Any, str]]:
        """(owner, attribute) of each function every step marker comes down to."""
        raise NotImplementedError

    def flushes(self) -> Sequence[tuple[Any, str]]:
        """(owner, attribute) of each function that runs graphs on purpose without ending a step."""
        raise NotImplementedError

    def counts(self) -> GraphCounts:
        """The counters of graphs."""
        raise NotImplementedError

    def compile_seconds(self) -> float:
        """Time spent compiling so far."""
        raise NotImplementedError

    def fallbacks(self) -> dict[str, int]:
        """How often each operation ran on the host, by its name (``nonzero``)."""
        raise NotImplementedError

    def fallback_count(self, names: Sequence[str]) -> Mapping[str, int]:
        """As :meth:`fallbacks`, for the given names only."""
        raise NotImplementedError

    def runs_at_once(self) -> bool:
        """True while operations run one by one, so that no marker is needed."""
        raise NotImplementedError

    def form_of(self, function: str, file: str) -> str | None:
        """The person's way to write a marker, from a function of the package that leads to one; None for others."""
        raise NotImplementedError
