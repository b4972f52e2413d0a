"""The profiler under a simulation: it sees the host, where everything happens.

Asked for device activity as well, a build without CUDA would complain at each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.autograd.profiler
import torch.profiler.profiler
from torch.profiler import ProfilerActivity

from deviceguard.simulate.patching import Patches


def install(patches: Patches) -> None:
    """Leave out the activity of the device."""
    recorder, base = torch.autograd.profiler.profile, torch.profiler.profiler._KinetoProfile
    patches.set(recorder, "__init__", _on_host(recorder.__init__))
    patches.set(base, "__init__", _without_device(base.__init__))
    patches.set(torch.autograd.profiler, "emit_nvtx", _nothing)


def _nothing(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext()


def _on_host(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, enabled: bool = True, *, use_device: Any = None, **kwargs: Any) -> None:  # noqa: N807
        kwargs.pop("use_cuda", None)
        original(self, enabled, use_device=None, **kwargs)

    return __init__


def _without_device(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *, activities: Iterable[Any] | None = None, **kwargs: Any) -> None:  # noqa: N807
        wanted = None if activities is None else [kind for kind in activities if kind is ProfilerActivity.CPU]
        original(self, activities=wanted or [ProfilerActivity.CPU], **kwargs)

    return __init__
