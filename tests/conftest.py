"""What every test shares: it must leave the process as it found it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

SIMULATED_XLA = "TEST_SIMULATED_XLA"
"""With this variable set, tests marked ``xla`` run on a simulated device where torch_xla is not installed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs torch_xla where that is not installed, unless it is to run on a simulated XLA device."""
    if importlib.util.find_spec("torch_xla") is not None or os.environ.get(SIMULATED_XLA):
        return
    missing = pytest.mark.skip(reason="torch_xla is not installed; tox -e xla installs it, -e simulated-xla plays it")
    for item in items:
        if item.get_closest_marker("xla") is not None:
            item.add_marker(missing)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a guard open or a simulation on, and clean up for the next one."""
    yield
    left = [*_open_sessions(), *_open_simulations(), *_modes()]
    if left:
        pytest.fail(f"left behind: {', '.join(left)}")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """What one test has compiled is no concern of the next, whose guard would take care of it."""
    yield
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    if compiler is not None and compiler.FRAME_COUNTER:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The person who runs the tests may have the guard switched on in the environment."""
    for name in [name for name in os.environ if name.startswith("DEVICEGUARD")]:
        monkeypatch.delenv(name)


def _open_sessions() -> list[str]:
    hub = sys.modules.get("deviceguard.hub")
    if hub is None:
        return []
    sessions = hub.HUB.sessions
    for session in sessions:
        hub.HUB.leave(session)
    return [f"a guard with policy {session.settings.policy}" for session in sessions]


def _modes() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    left = []
    while torch._C._len_torch_function_stack():
        left.append(f"the function mode {torch.overrides._pop_mode()!r}")
    return left


def _open_simulations() -> list[str]:
    simulation = sys.modules.get("deviceguard.simulate")
    if simulation is None or not simulation.active():
        return []
    from deviceguard.simulate import session

    types = sorted(simulation.device_types())
    while simulation.active():
        session.leave()
    return [f"a simulation of {', '.join(types)}"]
