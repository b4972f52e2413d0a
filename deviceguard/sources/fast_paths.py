"""Fused inference paths of PyTorch's own attention layers, for which function modes have to step aside.

A function mode turns these paths off, and the last digits of their results differ. A mode that steps aside while such a
layer runs changes no result.
"""

from __future__ import annotations

import threading
from typing import Protocol

from torch import nn

_FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class Hideable(Protocol):
    """A mode that can leave the stack for a while."""

    def hide(self) -> None:
        """Leave the stack until ``show`` was called as often."""

    def show(self) -> None:
        """Come back."""


class FastPaths:
    """The modes that step aside, each in the thread it belongs to."""

    def __init__(self) -> None:
        self._modes: list[tuple[int, Hideable]] = []

    def add(self, mode: Hideable) -> None:
        """From now on this mode steps aside in this thread."""
        self._modes = [*self._modes, (threading.get_ident(), mode)]

    def remove(self, mode: Hideable) -> None:
        """No longer."""
        self._modes = [(thread, other) for thread, other in self._modes if other is not mode]

    def enter(self) -> None:
        """A layer that may take a fused path is about to run."""
        for mode in self._here():
            mode.hide()

    def leave(self) -> None:
        """It returned or raised."""
        for mode in reversed(self._here()):
            mode.show()

    def _here(self) -> list[Hideable]:
        here = threading.get_ident()
        return [mode for thread, mode in self._modes if thread == here]


def may_be_fused(module: nn.Module) -> bool:
    """True for a layer that may take a fused path in its mode."""
    return isinstance(module, _FAST) and not module.training


FAST_PATHS = FastPaths()
"""Those of this process."""
