"""The one exception of our own: everything else is raised with PyTorch's class and words."""

from __future__ import annotations

from typing import NoReturn


class NotSimulatedError(NotImplementedError):
    """A call that a simulated device cannot answer; said aloud, because a wrong answer would be worse."""


def not_simulated(name: str) -> NoReturn:
    """Refuse a call by its public name."""
    raise NotSimulatedError(
        f"{name} is not simulated: deviceguard.simulate has no hardware behind it and gives no made-up answer here"
    )
