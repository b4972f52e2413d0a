"""Streams and events of a simulated device.

Everything runs in order on the host, so a stream is a name and an event is a time stamp. Both keep the interface which
programs use, and the current stream is tracked, so that ``with torch.cuda.stream(s)`` reads back what it set.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from deviceguard.simulate.devices import device as device_object
from deviceguard.simulate.devices import index_of
from deviceguard.simulate.state import running


class _Current(threading.local):
    """The current stream of each device, by thread."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_CURRENT = _Current()


class Stream:
    """Stands in for ``torch.cuda.Stream``."""

    _made = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device_index = index_of(device)
        self.device = device_object(running().type, self.device_index)
        self.priority = priority
        Stream._made += 1
        self.stream_id = Stream._made * 32 + 3
        self.cuda_stream = self.stream_id
        self.device_type = 1

    def synchronize(self) -> None:
        """All work is done already."""

    def query(self) -> bool:
        """All work is done already."""
        return True

    def is_capturing(self) -> bool:
        """Graphs are not simulated, so nothing is ever captured."""
        return False

    def wait_stream(self, stream: Any) -> None:
        """Work runs in order already."""

    def wait_event(self, event: Any) -> None:
        """Work runs in order already."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event on this stream."""
        made = Event() if event is None else event
        made.record(self)
        return made

    def __enter__(self) -> Stream:
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.stream_id == other.stream_id and self.device == other.device

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """Stands in for ``torch.cuda.Event``: remembers when it was recorded."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self.recorded: float | None = None
        self.device: torch.device | None = None
        self.cuda_event = 0

    def record(self, stream: Stream | None = None) -> None:
        """Note the time."""
        self.device = (stream or current_stream()).device
        self.recorded = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Work runs in order already."""

    def query(self) -> bool:
        """All work is done already."""
        return True

    def synchronize(self) -> None:
        """All work is done already."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.recorded is None or end_event.recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event.recorded - self.recorded) * 1e3

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self.recorded is None else "<torch.cuda.Event 0x1>"


class StreamContext:
    """``with torch.cuda.stream(s)``: sets the stream, and the device with it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._before = current_stream(self.stream.device)
        self._index = running().current.index
        set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.stream is None:
            return
        set_stream(self._before)
        running().current.index = self._index


def default_stream(device: Any = None) -> Stream:
    """The stream with number 0 of a device."""
    stream = Stream.__new__(Stream)
    stream.device_index = index_of(device)
    stream.device = device_object(running().type, stream.device_index)
    stream.priority = stream.stream_id = stream.cuda_stream = 0
    stream.device_type = 1
    return stream


def current_stream(device: Any = None) -> Stream:
    """The stream that was set last in this thread."""
    index = index_of(device)
    return _CURRENT.streams.get(index) or default_stream(index)


def set_stream(stream: Any) -> None:
    """Make a stream, and its device, current."""
    if stream is None:
        return
    _CURRENT.streams[stream.device_index] = stream
    running().current.index = stream.device_index


def stream_context(stream: Any) -> StreamContext:
    """``torch.cuda.stream``."""
    return StreamContext(stream)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """``Tensor.record_stream``: no memory is given back too early where work runs in order already."""


_RealStream, _RealEvent = torch.Stream, torch.Event


class _Neutral(type):
    """Makes a simulated device's objects instances of the device-neutral class, as the real ones are."""

    both: tuple[type, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.both)


class NeutralStream(metaclass=_Neutral):
    """Stands in for ``torch.Stream``: makes one of the device that it is asked for, the accelerator by default."""

    both = (Stream, _RealStream)

    def __new__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Make a stream of that device."""
        if device is None or _is_simulated(device):
            return Stream(device, *args, **kwargs)
        return _RealStream(device, *args, **kwargs)


class NeutralEvent(metaclass=_Neutral):
    """Stands in for ``torch.Event``."""

    both = (Event, _RealEvent)

    def __new__(cls, device: Any = None, *, enable_timing: bool = False, **kwargs: Any) -> Any:
        """Make an event of that device."""
        if device is None or _is_simulated(device):
            return Event(enable_timing, **kwargs)
        return _RealEvent(device, enable_timing=enable_timing, **kwargs)


def _is_simulated(device: Any) -> bool:
    return isinstance(device, int) or torch.device(device).type == running().type


def neutral() -> dict[str, type]:
    """The device-neutral classes, by name in ``torch``."""
    return {"Stream": NeutralStream, "Event": NeutralEvent}
