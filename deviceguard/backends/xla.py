"""XLA devices (TPU, and the CPU device of torch_xla)."""

from __future__ import annotations

import sys

from deviceguard.backends.backend import Backend


class XlaBackend(Backend):
    """torch_xla is never imported by the guard: it is here when the program imported it."""

    name = "xla"
    replaces_parameters = True
    refuses_host_operands = False
    traced = True

    def owns(self, device_type: str) -> bool:  # noqa: D102
        return device_type == "xla"

    def is_present(self) -> bool:  # noqa: D102
        return "torch_xla" in sys.modules

    def was_asked_for(self) -> bool:  # noqa: D102
        return self.is_present()
