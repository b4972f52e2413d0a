import sys
import types

import pytest
import torch

from deviceguard.backends.tracing import GraphCounts, Tracing
from deviceguard.events import HostFallback, PendingRead, StepMarked
from deviceguard.sources import step_markers
from deviceguard.sources.graph_recording import Recorder
from deviceguard.sources.modes import put_below, take_out
from deviceguard.sources.step_markers import StepMarkers

PACKAGE = "a_backend_that_traces"


class Runtime(types.ModuleType):
    """Stands for the package of a backend that traces."""

    def __init__(self):
        super().__init__(PACKAGE)
        self.made = dict.fromkeys(("markers", "graphs", "compiled"), 0)
        self.host = {}

    def mark(self, compiled=0):
        self.made["markers"] += 1
        self.run(compiled)

    def run(self, compiled=0):
        self.made["graphs"] += 1
        self.made["compiled"] += compiled

    def flush(self):
        self.run()


class FakeTracing(Tracing):
    package = PACKAGE
    sync_call = "sync()"
    reads = frozenset({"item"})

    def __init__(self, runtime):
        self.runtime = runtime

    def is_loaded(self):
        return PACKAGE in sys.modules

    def markers(self):
        return ((self.runtime, "mark"),)

    def flushes(self):
        return ((self.runtime, "flush"),)

    def counts(self):
        return GraphCounts(**self.runtime.made)

    def compile_seconds(self):
        return float(self.runtime.made["compiled"])

    def fallbacks(self):
        return dict(self.runtime.host)

    def fallback_count(self, names):
        return {name: self.runtime.host.get(name, 0) for name in names}

    def form_of(self, function, file):
        return None


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    monkeypatch.setitem(sys.modules, PACKAGE, made)
    monkeypatch.setattr(step_markers, "tracings", lambda: (FakeTracing(made),))
    return made


@pytest.fixture
def seen():
    return []


@pytest.fixture
def source(runtime, seen):
    made = StepMarkers(seen.append)
    made.wanted = made.provides
    made.install()
    yield made
    made.uninstall()


def test_says_what_a_step_cost(runtime, source, seen):
    runtime.run()
    runtime.host["median"] = 2
    runtime.host["item"] = 3
    runtime.mark(compiled=1)

    (event,) = seen
    assert isinstance(event, StepMarked)
    assert (event.form, event.compiled, event.executed_early) == ("sync()", 1, 1)
    assert event.compile_seconds == 1.0
    assert event.fallbacks == {"median": 2}


def test_counts_from_marker_to_marker(runtime, source, seen):
    runtime.mark(compiled=1)
    runtime.mark()

    assert [event.compiled for event in seen] == [1, 0]


def test_graphs_run_on_purpose_are_no_early_reads(runtime, source, seen):
    runtime.flush()
    runtime.mark()

    assert seen[0].executed_early == 0


def test_counters_that_the_program_clears(runtime, source, seen):
    runtime.mark(compiled=1)
    runtime.made = dict.fromkeys(runtime.made, 0)
    runtime.mark(compiled=1)

    assert [event.compiled for event in seen] == [1, 1]


def test_calls_of_the_step_after_trouble_are_watched(runtime, source, seen):
    class Asks(torch.Tensor):
        pass

    def read(tensor):
        return torch.overrides.handle_torch_function(read, (tensor,), tensor) if mode() else runtime.run()

    def mode():
        return torch.overrides._get_current_function_mode() is not None

    runtime.run()
    runtime.mark()
    with torch._C.DisableTorchFunctionSubclass():
        read(torch.ones(2).as_subclass(Asks))
    runtime.mark()

    kinds = [type(event) for event in seen]
    assert kinds == [StepMarked, PendingRead, StepMarked]
    assert seen[1].call == "read"
    assert seen[2].recorded


def test_fallbacks_are_traced_to_the_call(runtime, source, seen):
    def median(tensor):
        if torch.overrides._get_current_function_mode() is not None:
            return torch.overrides.handle_torch_function(median, (tensor,), tensor)
        runtime.host["median"] = runtime.host.get("median", 0) + 1
        return None

    runtime.host["median"] = 1
    runtime.mark()
    median(torch.ones(2))
    runtime.mark()

    assert [event.ops for event in seen if isinstance(event, HostFallback)] == [{"median": 1}]


def test_tells_where_two_steps_differ(runtime, source, seen):
    x = torch.arange(10)
    for step in range(3):
        x[step : step + 2]
        runtime.mark(compiled=1)

    change = seen[-1].change
    assert (change.kind, change.before, change.after) == ("number", "1:3", "2:4")
    assert tuple(change.names) == ("step",)
    assert seen[-2].change is None


def test_quiet_steps_are_not_watched(runtime, source, seen):
    runtime.mark()
    assert torch.overrides._get_current_function_mode() is None


def test_everything_is_put_back(runtime, seen):
    before = vars(runtime).copy()
    source = StepMarkers(seen.append)
    source.wanted = source.provides
    source.install()
    runtime.mark(compiled=1)
    assert torch.overrides._get_current_function_mode() is not None

    source.uninstall()

    assert {name for name in vars(runtime) if name not in before} == set()
    assert torch.overrides._get_current_function_mode() is None


def test_package_imported_later(monkeypatch, tmp_path, seen):
    (tmp_path / f"{PACKAGE}.py").write_text("made = {'markers': 0, 'graphs': 0, 'compiled': 0}\ndef mark(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.setattr(step_markers, "_WAITING", {})

    class Late(FakeTracing):
        def __init__(self):
            super().__init__(None)

        def markers(self):
            return ((sys.modules[PACKAGE], "mark"),)

        def flushes(self):
            return ()

        def counts(self):
            return GraphCounts(**getattr(sys.modules.get(PACKAGE), "made", {}))

        def compile_seconds(self):
            return 0.0

        def fallbacks(self):
            return {}

    late = Late()
    monkeypatch.setattr(step_markers, "tracings", lambda: (late,))
    source = StepMarkers(seen.append)
    source.wanted = source.provides
    source.install()
    try:
        module = __import__(PACKAGE)
        module.mark()
        assert [type(event) for event in seen] == [StepMarked]
    finally:
        source.uninstall()
        sys.modules.pop(PACKAGE, None)
    module.mark()
    assert len(seen) == 1


@pytest.fixture
def recorder():
    return Recorder(lambda: None, lambda call, before: None)


def test_modes_of_the_program_stay_in_their_order(recorder):
    with torch.device("meta"):
        put_below(recorder)
        with torch.device("cpu"):
            pass
        assert torch.ones(2).device.type == "meta"
    assert torch.overrides._get_current_function_mode_stack() == [recorder]
    take_out(recorder)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_default_device_stays_at_the_bottom(recorder):
    torch.set_default_device("meta")
    try:
        put_below(recorder)
        assert torch.ones(2).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert torch.overrides._get_current_function_mode_stack() == [recorder]
    take_out(recorder)
