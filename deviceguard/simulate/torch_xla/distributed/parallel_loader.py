"""Stands in for ``torch_xla.distributed.parallel_loader``: batches come on the device, and each ends a step.

The real one uploads in background threads. Here the batch is fetched and moved when it is asked for, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ..core import xla_model as xm


class PerDeviceLoader:
    """What one device gets."""

    def __init__(self, loader: ParallelLoader, device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self._batches = iter(loader._cpu_loader)
        self._yielded = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next batch; a step marker after each ``batches_per_execution`` batches."""
        if self._yielded >= self._loader.batches_per_execution:
            self._yielded = 0
            xm._sync()
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._yielded:
                xm._sync()
            raise
        self._yielded += 1
        is_tensor = isinstance(batch, torch.Tensor)
        with torch.no_grad():
            moved = xm.send_cpu_data_to_device(batch, self._device)
        return moved[0] if is_tensor else moved

    def close(self) -> None:
        """Nothing runs in the background."""


class ParallelLoader:
    """Wraps a loader for some devices."""

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[Any],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        if len(devices) != 1:
            raise NotImplementedError("a simulated ParallelLoader serves one device")
        self._cpu_loader: Any = cpu_loader
        self._devices = [torch.device(device) for device in devices]
        self.batches_per_execution = batches_per_execution

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        """The iterator over what one device gets."""
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """How many batches one device gets."""
        return len(self._cpu_loader) // len(self._devices)

    def close(self) -> None:
        """Nothing runs in the background."""


class MpDeviceLoader:
    """Wraps a loader for the device of this process."""

    def __init__(self, loader: Any, device: Any, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs

    def __iter__(self) -> Iterator[Any]:
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)
