"""Stands in for torch_xla's extension module: every step marker and every counter comes down to this."""  # noqa: N999

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deviceguard.simulate.state import running
from deviceguard.simulate.xla_api import graph, memory


def _xla_step_marker(device: str, devices: Sequence[str], wait: bool = True, reset_scope: bool = True) -> None:
    graph().mark()


def _xla_sync_multi(
    tensors: Sequence[Any], devices: Sequence[str], wait: bool = True, sync_xla_data: bool = True
) -> None:
    graph().read(tensors)


def _run_cached_graph(hash_str: str, graph_inputs: Sequence[Any]) -> Any:
    raise RuntimeError(f"no graph {hash_str} is cached")


def _xla_counter_names() -> list[str]:
    return sorted(graph().counters)


def _xla_counter_value(name: str) -> int | None:
    return graph().counters.get(name)


def _clear_xla_counters() -> None:
    graph().clear()


def _clear_xla_metrics() -> None:
    """No durations are kept."""


def _xla_metric_names() -> list[str]:
    return ["CompileTime", "ExecuteTime"]


def _xla_metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    compiled, cached = (graph().counters[key] for key in ("UncachedCompile", "CachedCompile"))
    samples = {"CompileTime": compiled, "ExecuteTime": compiled + cached}.get(name)
    return None if samples is None else (samples, 0.0, [])


def _xla_metrics_report() -> str:
    return "".join(f"Counter: {name}\n  Value: {value}\n" for name, value in sorted(graph().counters.items()))


def _get_executed_fallback_ops() -> list[str]:
    return [name for name in graph().counters if name.startswith("aten::")]


def _get_use_eager_mode() -> bool:
    return graph().eager


def _set_use_eager_mode(on: bool) -> None:
    graph().eager = on


def _xla_get_default_device() -> str:
    return f"xla:{running().current.index}"


def _xla_set_default_device(device: str) -> str:
    before = _xla_get_default_device()
    running().current.index = int(str(device).partition(":")[2] or 0)
    return before


def _xla_get_devices() -> list[str]:
    return _xla_real_devices()


def _xla_real_devices(devices: Sequence[str] | None = None) -> list[str]:
    from . import runtime

    numbers = range(running().count()) if devices is None else [int(str(d).partition(":")[2] or 0) for d in devices]
    return [f"{runtime.device_type()}:{number}" for number in numbers]


def _xla_memory_info(device: str) -> dict[str, int]:
    usage = memory().usage(int(str(device).partition(":")[2] or 0))
    return {"bytes_used": usage.allocated, "bytes_limit": memory().total, "peak_bytes_used": usage.peak}
