from __future__ import annotations

import sys
import types

import pytest

from deviceguard.backends import nvml
from deviceguard.backends.simulated import SimulatedBackend
from tests.rules.loops import cost, found, quiet, training
from tests.scripts import run_script


@pytest.fixture(autouse=True)
def figures_of_real_hardware(monkeypatch):
    monkeypatch.setattr(SimulatedBackend, "has_figures", True)


LONG = training("pass", steps=55)


def test_nearly_empty_device():
    finding = found(LONG, "PIP009")

    assert finding.severity.value == "advice"
    assert "cuda:0 is nearly empty" in finding.message
    assert "a larger batch" in finding.fix
    assert cost(finding)["memory_share"] < 0.05


def test_simulated_device_has_no_figures(monkeypatch):
    monkeypatch.setattr(SimulatedBackend, "has_figures", False)
    quiet(LONG, "PIP009")


def test_short_run_is_silent():
    quiet(training("pass", steps=10), "PIP009")


def test_idle_and_shared(monkeypatch):
    load = nvml.Load("H100", utilisation=0.1, memory=0.9, others=2, clock=1.0)
    monkeypatch.setattr(nvml, "look", lambda index, uuid: load)
    messages = [finding.message for finding in run_script(LONG).of("PIP009")]

    assert any("shared with 2 other process(es)" in message for message in messages)
    assert any("was busy for 10% of the time" in message for message in messages)


def test_busy_device_is_silent(monkeypatch):
    from deviceguard.rules.pip import pip009_device_underused

    monkeypatch.setattr(nvml, "look", lambda index, uuid: nvml.Load("H100", 0.95, 0.9, 0, 1.0))
    monkeypatch.setattr(pip009_device_underused, "peak_memory", lambda device: 60 << 30)
    quiet(LONG, "PIP009")


def test_throttled_and_old(monkeypatch):
    from deviceguard.rules.pip import pip009_device_underused

    monkeypatch.setattr(nvml, "look", lambda index, uuid: nvml.Load("Tesla P100", 0.9, 0.9, 0, 0.4))
    monkeypatch.setattr(pip009_device_underused, "has_matrix_units", lambda device: False)
    messages = [finding.message for finding in run_script(LONG).of("PIP009")]

    assert any("(Tesla P100) runs at 40% of its fastest clock" in message for message in messages)
    assert any("of a generation without matrix units" in message for message in messages)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert nvml.look() is None


@pytest.mark.parametrize("broken", [False, True])
def test_reads_the_library(monkeypatch, broken):
    def utilisation(handle):
        if broken:
            raise RuntimeError("not supported")
        return types.SimpleNamespace(gpu=25)

    library = types.SimpleNamespace(
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=20, total=80),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [types.SimpleNamespace(pid=-1)],
        nvmlDeviceGetName=lambda handle: b"H100",
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 2000,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1000,
        nvmlDeviceGetUtilizationRates=utilisation,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)

    assert nvml.look() == (None if broken else nvml.Load("H100", 0.25, 0.25, 1, 0.5))
    assert nvml.look(0, "GPU-1") == nvml.look()


def test_looks_are_the_device_part_of_the_step_time(monkeypatch):
    monkeypatch.setattr(nvml, "look", lambda index, uuid: nvml.Load("H100", 0.3, 0.9, 0, 1.0))

    assert run_script(LONG).to_dict()["time"]["device_busy"] == 0.3
