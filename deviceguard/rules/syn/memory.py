"""Which host memory has been uploaded before, and whether its content is still the same. Weak references only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SAMPLE = 64
_MOST_REGIONS = 8192


@dataclasses.dataclass(slots=True)
class Region:
    """A piece of a storage that was uploaded.

    Attributes:
        storage: weak reference to the storage.
        version: number of in-place changes it had at the last upload.
        uploads: how often it was uploaded unchanged.
        digest: fingerprint of its content, from the second upload on.
    """

    storage: Any
    version: int
    uploads: int = 1
    digest: int | None = None


class Regions:
    """The pieces of host memory that were uploaded."""

    def __init__(self) -> None:
        self._regions: dict[tuple[Any, ...], Region] = {}

    def upload(self, source: torch.Tensor) -> int:
        """Note an upload.

        Returns:
            How often the same piece has been uploaded with the same content, as far as that is certain: 1 for the
            first two times (the first leaves no fingerprint).
        """
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = source.untyped_storage()
        key = (storage._cdata, source.storage_offset(), tuple(source.shape), source.stride(), source.dtype)
        region = self._regions.get(key)
        if region is None or region.storage.expired() or region.version != source._version:
            if region is None and not self._has_room():
                return 1
            self._regions[key] = Region(StorageWeakRef(storage), source._version)
            return 1
        digest = fingerprint(source)
        unchanged = region.digest == digest
        region.digest = digest
        region.uploads = region.uploads + 1 if unchanged else 1
        return region.uploads + 1 if unchanged else 1

    def _has_room(self) -> bool:
        if len(self._regions) < _MOST_REGIONS:
            return True
        self._regions = {key: region for key, region in self._regions.items() if not region.storage.expired()}
        return len(self._regions) < _MOST_REGIONS


class BatchMemory:
    """The host memory of the batches a loader gave lately."""

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def take(self, batch: Any) -> None:
        """Note the tensors of a batch; those of earlier batches that are gone are forgotten."""
        from torch.multiprocessing.reductions import StorageWeakRef

        self._storages = {key: found for key, found in self._storages.items() if not found.expired()}
        if len(self._storages) < _MOST_REGIONS:
            for tensor in tensors_in(batch):
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        found = self._storages.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()


def fingerprint(data: Any) -> int | None:
    """A number that tells contents apart, from a sample of the elements; None for data that cannot be sampled."""
    try:
        return _fingerprint(data)
    except Exception:
        return None


def _fingerprint(data: Any) -> int:
    if hasattr(data, "detach"):
        flat = data.detach().reshape(-1) if data.is_contiguous() else data.detach().flatten()
        step = max(1, flat.numel() // _SAMPLE)
        return hash((tuple(data.shape), str(data.dtype), tuple(flat[::step].tolist())))
    if type(data).__module__ == "numpy":
        flat = data.reshape(-1)
        step = max(1, flat.size // _SAMPLE)
        return hash((tuple(data.shape), str(data.dtype), tuple(flat[::step].tolist())))
    if isinstance(data, list | tuple):
        step = max(1, len(data) // _SAMPLE)
        return hash((len(data), tuple(_fingerprint(item) for item in data[::step])))
    return hash(data)


def tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """The host tensors of a batch, inside lists, tuples and mappings too."""
    if hasattr(value, "untyped_storage") and hasattr(value, "dtype"):
        yield value
    elif isinstance(value, Mapping) and depth:
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for item in value:
            yield from tensors_in(item, depth - 1)
