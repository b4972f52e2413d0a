"""The questions the guard asks of a kind of device."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.backends.sync_reports import SyncReports
from deviceguard.backends.tracing import Tracing


class Backend:
    """One kind of accelerator. A backend answers questions and holds no rule logic; no answer ever raises.

    Attributes:
        name: ``cuda``; also the name of its file.
        asynchronous: True where work is queued and the host runs ahead of the device.
        replaces_parameters: True where ``Module.to`` makes new Parameter objects.
        refuses_host_operands: True where an operation with a host operand raises; False where the operand is
            uploaded silently.
        has_figures: True where memory and load read from the device are those of real hardware.
        traced: True where operations are collected into a graph that a step marker executes.
        tracing: what a backend that traces tells of its graphs; None for others.
        reports: how it is told to report calls that make the host wait; None where it cannot.
    """

    name: ClassVar[str]
    asynchronous: ClassVar[bool] = True
    replaces_parameters: ClassVar[bool] = False
    refuses_host_operands: ClassVar[bool] = True
    has_figures: ClassVar[bool] = True
    traced: ClassVar[bool] = False
    tracing: ClassVar[Tracing | None] = None
    reports: ClassVar[SyncReports | None] = None

    def owns(self, device_type: str) -> bool:
        """True when this backend speaks for devices of the type."""
        raise NotImplementedError

    def is_present(self) -> bool:
        """True when this process can use such a device now."""
        raise NotImplementedError

    def was_asked_for(self) -> bool:
        """True when the program itself has shown that it wants this device (beyond its being there)."""
        return False

    def device_name(self) -> str:
        """The device as a person would write it in ``torch.device``."""
        return self.name
