"""Which host fallbacks come from shapes that depend on values, and which from a missing operation."""

from __future__ import annotations

from collections.abc import Mapping

from deviceguard.backends.devices import tracings


def dynamic(ops: Mapping[str, int]) -> list[str]:
    """The operations whose result has a shape that depends on values, sorted."""
    known = frozenset().union(*(tracing.dynamic_ops for tracing in tracings()))
    return sorted(name for name in ops if _family(name) in known)


def missing(ops: Mapping[str, int]) -> list[str]:
    """The operations the device does not have, sorted."""
    known = frozenset().union(*(tracing.dynamic_ops for tracing in tracings()))
    return sorted(name for name in ops if _family(name) not in known)


def _family(name: str) -> str:
    return name.partition(".")[0]
