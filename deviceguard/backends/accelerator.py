"""Any other device that ``torch.accelerator`` knows: mps, xpu, hpu, npu, PrivateUse1 devices."""

from __future__ import annotations

from deviceguard.backends.backend import Backend

_HOST = frozenset({"cpu", "meta"})


class AcceleratorBackend(Backend):
    """The fallback: asked last, it speaks for every type that is neither the host nor ``meta``."""

    name = "accelerator"

    def owns(self, device_type: str) -> bool:  # noqa: D102
        return device_type not in _HOST

    def is_present(self) -> bool:  # noqa: D102
        return self._current() is not None

    def device_name(self) -> str:  # noqa: D102
        return self._current() or self.name

    def _current(self) -> str | None:
        import torch

        try:
            if not torch.accelerator.is_available():
                return None
            device = torch.accelerator.current_accelerator()
        except Exception:
            return None
        return device.type if device is not None and device.type not in _HOST else None
