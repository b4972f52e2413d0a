"""CUDA devices, and ROCm ones under the same name."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.backends.backend import Backend
from deviceguard.backends.sync_reports import CudaSyncReports, SyncReports


class CudaBackend(Backend):
    """Real CUDA devices of this process."""

    name = "cuda"
    reports: ClassVar[SyncReports | None] = CudaSyncReports()

    def owns(self, device_type: str) -> bool:  # noqa: D102
        return device_type == "cuda"

    def is_present(self) -> bool:  # noqa: D102
        import torch

        try:
            return bool(torch.backends.cuda.is_built()) and torch.cuda.is_available()
        except Exception:
            return False
