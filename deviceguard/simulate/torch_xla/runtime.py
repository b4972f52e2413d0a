"""Stands in for ``torch_xla.runtime``: one process that drives all simulated devices."""

from __future__ import annotations

import os
from typing import Any

from deviceguard.simulate import xla_api
from deviceguard.simulate.errors import not_simulated
from deviceguard.simulate.state import running

__getattr__ = xla_api.absent(
    "torch_xla.runtime",
    "get_master_ip runtime_device_attributes global_runtime_device_attributes get_num_cached_compilation_graph",
)


def device_type() -> str:
    """The kind of hardware, as ``PJRT_DEVICE`` names it; a TPU when it names none."""
    return os.environ.get("PJRT_DEVICE", "TPU").partition(":")[0]


def set_device_type(pjrt_device: str) -> None:
    """Name the kind of hardware."""
    os.environ["PJRT_DEVICE"] = pjrt_device


def is_bf16_supported() -> bool:
    """Always."""
    return True


def local_process_count() -> int:
    """One process."""
    return 1


def process_count() -> int:
    """One process."""
    return 1


def process_index() -> int:
    """The only process."""
    return 0


def host_index() -> int:
    """The only host."""
    return 0


def world_size() -> int:
    """One replica."""
    return 1


def global_ordinal() -> int:
    """The only replica."""
    return 0


def local_ordinal() -> int:
    """The only replica."""
    return 0


def global_device_count() -> int:
    """The simulated devices."""
    return running().count()


def local_device_count() -> int:
    """The simulated devices."""
    return running().count()


def addressable_device_count() -> int:
    """The simulated devices."""
    return running().count()


def global_runtime_device_count() -> int:
    """The simulated devices."""
    return running().count()


def addressable_runtime_device_count() -> int:
    """The simulated devices."""
    return running().count()


def is_spmd() -> bool:
    """Never: sharding is not simulated."""
    return False


def use_spmd(auto: bool | None = False) -> None:
    """Refused."""
    not_simulated("torch_xla.runtime.use_spmd")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Nothing is compiled, so nothing is kept."""


def initialize_singleprocess(*_: Any) -> None:
    """One process already."""
