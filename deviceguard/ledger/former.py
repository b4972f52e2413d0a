"""Tensors that a module still holds in plain attributes although a conversion has replaced or passed them by."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from deviceguard.naming.strays import strays_of

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.events import ModuleConverted


class Former:
    """Filled at conversions only.

    An *alias* was a registered parameter or buffer and is none any more; a *cache* was filled while the module ran on
    the device it has left.
    """

    def __init__(self) -> None:
        self._tensors: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._versions: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._holders: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def note(self, event: ModuleConverted, ran: bool) -> None:
        """Look through the plain attributes of a module that was converted.

        Args:
            event: the conversion.
            ran: whether the module was called before it, so that caches in it belong to its former device.
        """
        replaced = {id(old): new for old, new in (*event.replaced, *event.replaced_buffers)}
        left = event.moved_from - event.moved_to
        for module in event.module.modules():
            for stray in strays_of(module):
                if not isinstance(stray.value, torch.Tensor):
                    continue
                new = replaced.get(id(stray.value))
                if new is not None:
                    self._tensors[stray.value] = weakref.ref(new)
                    self._versions.setdefault(stray.value, stray.value._version)
                    self._holders.setdefault(module, {})[stray.path] = weakref.ref(new)
                elif ran and str(stray.value.device) in left:
                    self._tensors.setdefault(stray.value, None)

    def knows(self, tensor: torch.Tensor) -> bool:
        """True for a tensor of a module's former device or for one whose place another has taken."""
        return tensor in self._tensors

    def successor(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The registered tensor that took the place of one, if there is one."""
        reference = self._tensors.get(tensor)
        return None if reference is None else reference()

    def aliases_in(self, module: nn.Module) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """(path, stale tensor, its successor) for each alias a module still holds where it was found."""
        paths: dict[str, Any] = self._holders.get(module, {})
        if not paths:
            return []
        held = []
        for stray in strays_of(module):
            new = paths[stray.path]() if stray.path in paths else None
            if new is not None and stray.value is not new and self.knows(stray.value):
                held.append((stray.path, stray.value, new))
        return held

    def was_written(self, tensor: torch.Tensor) -> bool:
        """True when an alias was changed in place after the conversion."""
        return tensor in self._versions and tensor._version != self._versions[tensor]

    def holders(self) -> list[nn.Module]:
        """The modules in which aliases were found."""
        return [module for module in list(self._holders) if module is not None]
