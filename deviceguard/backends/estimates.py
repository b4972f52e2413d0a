"""What it costs to be held up by a device, where there is no device to measure it on."""

from __future__ import annotations

_WAIT = 15e-6
"""Seconds that a wait for the device takes at least: a launch, the copy, the wake-up."""
_SUBMISSION = 10e-6
"""Seconds for a copy to the device, before which there is less to wait for."""
_BANDWIDTH = 6e9
"""Bytes a second from pageable memory over PCIe."""


def wait_seconds(waits: int = 1, nbytes: int = 0) -> float:
    """An estimate of the seconds a host loses when it waits for the device.

    Args:
        waits: how often it waits.
        nbytes: how much is copied to the host meanwhile, in bytes.
    """
    return waits * _WAIT + nbytes / _BANDWIDTH


def upload_seconds(nbytes: int) -> float:
    """An estimate of the seconds a host loses to a copy from pageable memory to the device, of so many bytes."""
    return _SUBMISSION + nbytes / _BANDWIDTH
