"""Deep copies and unpickled copies of modules and parameters, and what is saved to disk."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from deviceguard.events import Event, ModuleCopied, ObjectSaved, ParameterCopied
from deviceguard.naming.frames import locals_of
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_RECONSTRUCT = copy._reconstruct.__code__  # type: ignore[attr-defined]
_LOOK_BACK = 8


class Copies(Source):
    """Emits for each module and parameter that is copied, with the original where there is one."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ModuleCopied, ParameterCopied, ObjectSaved})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(nn.Module, "__setstate__", self._restored)
        self._patches.replace(nn.Parameter, "__deepcopy__", self._parameter)
        self._patches.replace(torch, "save", self._save)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _restored(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __setstate__(module: nn.Module, state: Any) -> None:  # noqa: N807
            original(module, state)
            self.tell(ModuleCopied, lambda: ModuleCopied(original_of_copy(module), module))

        return __setstate__

    def _parameter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __deepcopy__(parameter: nn.Parameter, memo: Any) -> Any:  # noqa: N807
            known = id(parameter) in memo
            result = original(parameter, memo)
            if not known and ParameterCopied in self.wanted:
                self.note(ParameterCopied, parameter, result)
            return result

        return __deepcopy__

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(obj, *args, **kwargs)
            self.tell(ObjectSaved, lambda: ObjectSaved(obj))
            return result

        return save


def original_of_copy(restored: object) -> Any | None:
    """The object that ``copy.deepcopy`` is copying into ``restored`` right now; None when it is unpickled.

    ``copy`` calls ``__setstate__`` on the new object from a frame that holds the old one.
    """
    frame: Any = sys._getframe(1)
    for _ in range(_LOOK_BACK):
        if frame is None:
            return None
        if frame.f_code is _RECONSTRUCT and locals_of(frame).get("y") is restored:
            return locals_of(frame).get("x")
        frame = frame.f_back
    return None
