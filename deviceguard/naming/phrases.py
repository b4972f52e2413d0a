"""Turns of phrase that several rules share, so that all messages speak with one voice."""

from __future__ import annotations

from collections.abc import Sequence

from deviceguard.events import CallFailed, Operand
from deviceguard.findings import Site
from deviceguard.naming.provenance import Origin, origin_of


def how_it_came(operand: Operand, event: CallFailed) -> str:
    """Where an operand was made or moved, as a clause for a message; empty where nothing is known."""
    return came_from(origin_of(operand.expression, event.frame, event.line))


def came_from(found: Origin) -> str:
    """An origin as a clause for a message."""
    if found.discarded_at is not None:
        return f" Line {found.discarded_at.line} calls `{found.discarded_at.source}` and discards the result."
    why = "" if found.placed else ", since no device is given"
    if found.factory is not None and found.factory_at is not None:
        return f" {found.factory} in line {found.factory_at.line} makes it on the host{why}."
    if found.bound_at is not None and found.bound_at.source:
        return f" It comes from line {found.bound_at.line}: `{found.bound_at.source}`."
    if found.factory is not None:
        return f" {found.factory} makes it on the host{why}."
    return ""


def site_of_call(event: CallFailed) -> Site | None:
    """The user's line of a call that failed."""
    from deviceguard.naming.frames import site_of

    return site_of(event.frame, event.line)


def listed(names: Sequence[str], most: int = 3) -> str:
    """``a, b and c``; ``a, b, c and 4 more``."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def made_at(site: Site | None) -> str:
    """``(made in train.py line 31)`` with a leading blank; empty where it is not known."""
    if site is None:
        return ""
    return f" (made in {site.file.replace(chr(92), '/').rpartition('/')[2]} line {site.line})"
