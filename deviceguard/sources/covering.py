"""Which waits are told already, so that a wait which two sources notice counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Cover(threading.local):
    """How deep this thread is inside calls whose waits the table of functions, or a patch, tells of.

    Attributes:
        depth: 0 outside of such calls.
    """

    depth = 0

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call whose waits are told of."""
        self.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.depth -= 1


COVER = Cover()
"""That of each thread of this process."""
