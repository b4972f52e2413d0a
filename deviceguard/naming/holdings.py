"""What the user's variables hold now: for rules that ask whether something is kept under a telling name."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from deviceguard.naming.frames import is_user_code, locals_of, outward

_MOST = 2_000


def held_values(start: FrameType | None) -> Iterator[tuple[str, str, Any]]:
    """(scope, name, value) of the variables of the user's frames, and of the attributes of ``self`` there.

    The scope is a text that tells functions apart. Nothing of the user's code runs: attributes are read from
    ``__dict__`` and the module registries only.
    """
    seen: set[int] = set()
    for frame in outward(start):
        if not is_user_code(frame):
            continue
        scopes = [(locals_of(frame), frame.f_code.co_name), (frame.f_globals, "<module>")]
        for names, scope in scopes:
            if id(names) in seen or (names is not frame.f_globals and frame.f_code.co_name == "<module>"):
                continue
            seen.add(id(names))
            for name, value in list(names.items())[:_MOST]:
                if not name.startswith("__"):
                    yield scope, name, value
        owner = locals_of(frame).get("self")
        if owner is not None and id(owner) not in seen:
            seen.add(id(owner))
            yield from _attributes(owner, frame.f_code.co_name)


def _attributes(owner: object, scope: str) -> Iterator[tuple[str, str, Any]]:
    attributes = getattr(owner, "__dict__", None)
    if type(attributes) is not dict:
        return
    for name, value in [*attributes.items(), *attributes.get("_modules", {}).items()][:_MOST]:
        if not name.startswith("_"):
            yield f"{type(owner).__name__}.{scope}", f"self.{name}", value
