"""Stands in for ``torch_xla.amp``."""

from __future__ import annotations

from typing import Any

import torch

from ..core import xla_model as xm


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801
    """``torch.autocast("xla")`` on a TPU; without effect, and with a warning, on other hardware."""

    def __init__(
        self, device: Any, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True
    ) -> None:
        assert "xla" in str(device), "torch_xla.autocast is available for XLA:TPU"
        if xm.xla_device_hw(device) not in ("TPU", "NEURON"):
            print("Warning: AMP only supported for XLA:TPU. Ignoring autocast.")
            enabled = False
        super().__init__("xla", enabled=enabled, dtype=dtype or torch.bfloat16, cache_enabled=cache_enabled)
