"""What the person asks for: ``"cuda"``, ``"cuda:4"``, ``"xla"``."""

from __future__ import annotations

from dataclasses import dataclass

#: Device types that can be simulated.
KNOWN_TYPES = ("cuda", "xla")


@dataclass(frozen=True, slots=True)
class Spec:
    """A device type and how many devices of it there are."""

    type: str
    count: int = 1

    def __str__(self) -> str:
        return self.type if self.count == 1 else f"{self.type}:{self.count}"


def parse_spec(text: str) -> Spec:
    """Read ``type`` or ``type:count``; the number is a count of devices, not an index."""
    kind, colon, number = text.partition(":")
    if kind not in KNOWN_TYPES:
        raise ValueError(f"cannot simulate {text!r}: the device type must be one of {', '.join(KNOWN_TYPES)}")
    if not colon:
        return Spec(kind)
    if not number.isdigit() or int(number) < 1:
        raise ValueError(f"cannot simulate {text!r}: the part after ':' is the number of devices, at least 1")
    return Spec(kind, int(number))
