"""A kind of device that itself reports, by a warning, each call that makes the host wait."""

from __future__ import annotations

from typing import Any, ClassVar

SILENT, WARN = 0, 1


class SyncReports:
    """The setting of one backend. It is global to the process, and reading or changing it starts no device.

    Attributes:
        text: what the warning begins with.
        notice: what PyTorch says once when the setting is changed for the first time.
    """

    text: ClassVar[str]
    notice: ClassVar[str]

    def is_available(self) -> bool:
        """True where this build of PyTorch can report; no answer ever raises."""
        raise NotImplementedError

    def get(self) -> int:
        """The mode in force: 0 for none, 1 for warnings, 2 for errors."""
        raise NotImplementedError

    def set(self, mode: int) -> None:
        """Put a mode in force."""
        raise NotImplementedError

    def setters(self) -> tuple[tuple[Any, str], tuple[Any, str]]:
        """(owner, attribute) of the function with which a program sets the mode, and of that which tells it."""
        raise NotImplementedError


class CudaSyncReports(SyncReports):
    """``torch.cuda.set_sync_debug_mode``, below the part of it that starts CUDA."""

    text: ClassVar[str] = "called a synchronizing CUDA operation"
    notice: ClassVar[str] = "Synchronization debug mode is a prototype feature"

    def is_available(self) -> bool:  # noqa: D102
        import torch

        return bool(torch.backends.cuda.is_built()) and hasattr(torch._C, "_cuda_set_sync_debug_mode")

    def get(self) -> int:  # noqa: D102
        import torch

        return int(torch._C._cuda_get_sync_debug_mode())

    def set(self, mode: int) -> None:  # noqa: D102
        import torch

        torch._C._cuda_set_sync_debug_mode(mode)

    def setters(self) -> tuple[tuple[Any, str], tuple[Any, str]]:  # noqa: D102
        import torch

        return (torch.cuda, "set_sync_debug_mode"), (torch.cuda, "get_sync_debug_mode")
