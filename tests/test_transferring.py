"""The transfer policy: levels by direction, explicit told from implicit, regions for one thread and task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import deviceguard
from deviceguard.hub import HUB
from deviceguard.settings import load
from deviceguard.transfer_policy import LEVELS, region_level, verdict

DISALLOWED = pytest.raises(deviceguard.DeviceGuardError, match="SYN016")


@pytest.fixture
def x() -> Iterator[torch.Tensor]:
    with deviceguard.simulate("cuda:2"):
        yield torch.randn(6, device="cuda")


def _set(target: torch.Tensor, index: Any, value: Any) -> None:
    target[index] = value


FORMS: list[tuple[str, str, bool, Callable[[torch.Tensor], Any]]] = [
    ("to the device", "host_to_device", True, lambda x: torch.zeros(6).to("cuda")),
    ("tensor on the device", "host_to_device", True, lambda x: torch.tensor(1.0, device="cuda")),
    ("number written", "host_to_device", False, lambda x: _set(x, 0, 1.0)),
    ("host index", "host_to_device", False, lambda x: x[[0, 2]]),
    ("item", "device_to_host", True, lambda x: x[0].item()),
    ("cpu", "device_to_host", True, lambda x: x.cpu()),
    ("without waiting", "device_to_host", True, lambda x: x.to("cpu", non_blocking=True)),
    ("condition", "device_to_host", False, lambda x: 1 if x.sum() > 0 else 0),
    ("text", "device_to_host", False, lambda x: f"{x}"),
    ("mask", "device_to_host", False, lambda x: x[x > 0]),
    ("other device", "device_to_device", True, lambda x: x.to("cuda:1")),
    ("into another device", "device_to_device", True, lambda x: torch.zeros(6, device="cuda:1").copy_(x)),
]


@pytest.mark.parametrize(("direction", "explicit", "form"), [form[1:] for form in FORMS], ids=[f[0] for f in FORMS])
@pytest.mark.parametrize("level", LEVELS)
def test_each_level_for_each_kind_of_transfer(x, direction, explicit, form, level):
    expected = verdict(level, explicit)
    with deviceguard.watch(select=["SYN016"], **{direction: level}) as report:
        with pytest.warns(deviceguard.DeviceGuardWarning) if expected == "disallow" else _nothing():
            form(x)

    assert [finding.severity.value for finding in report.findings] == {
        "allow": [],
        "log": ["advice"],
        "disallow": ["error"],
    }[expected]


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_levels():
    table = {level: (verdict(level, explicit=False), verdict(level, explicit=True)) for level in LEVELS}

    assert table == {
        "allow": ("allow", "allow"),
        "log": ("log", "allow"),
        "disallow": ("disallow", "allow"),
        "log_explicit": ("log", "log"),
        "disallow_explicit": ("disallow", "disallow"),
    }


def test_a_region_without_a_guard_raises_by_itself_and_leaves_nothing(x):
    with DISALLOWED, deviceguard.transfers(device_to_host="disallow"):
        bool(x.sum() > 0)

    assert HUB.sessions == ()
    assert region_level("device_to_host") is None


def test_what_is_wrong_and_what_to_write_instead(x):
    with pytest.raises(deviceguard.DeviceGuardError) as raised, deviceguard.transfers(device_to_host="disallow"):
        x[x > 0]
    finding = raised.value.finding

    assert finding.message == (
        "x goes from cuda:0 to the host by x[mask]: an implicit device_to_host transfer, which is not allowed here."
    )
    assert finding.fix == "keep it on the device; or deviceguard.transfers(device_to_host='allow') around it"
    assert finding.site.function == "test_what_is_wrong_and_what_to_write_instead"


def test_each_occurrence_raises(x):
    """A verdict depends on nothing that happened before."""
    with deviceguard.strict(device_to_host="disallow"):
        for _ in range(3):
            with DISALLOWED:
                bool(x.sum() > 0)


def test_watch_never_raises(x):
    with deviceguard.watch(device_to_host="disallow") as report, pytest.warns(deviceguard.DeviceGuardWarning):
        for _ in range(3):
            bool(x.sum() > 0)

    assert [finding.count for finding in report.of("SYN016")] == [3]


def test_the_innermost_region_decides(x):
    with deviceguard.strict(device_to_host="disallow"):
        with deviceguard.transfers(device_to_host="allow"):
            bool(x.sum() > 0)
            with DISALLOWED, deviceguard.transfers(device_to_host="disallow"):
                bool(x.sum() > 0)
            with deviceguard.transfers(host_to_device="disallow"):
                bool(x.sum() > 0)
        with DISALLOWED:
            bool(x.sum() > 0)


def test_allow_is_for_rules_and_works_here_too(x):
    with deviceguard.strict(device_to_host="disallow"), deviceguard.allow("SYN"):
        bool(x.sum() > 0)


def test_a_decorated_function_is_a_region(x):
    @deviceguard.transfers(device_to_host="disallow")
    def decide() -> bool:
        return bool(x.sum() > 0)

    with DISALLOWED:
        decide()
    bool(x.sum() > 0)


def test_a_region_of_one_thread_is_not_one_of_another(x):
    outcomes: dict[str, str] = {}
    inside, done = threading.Barrier(2), threading.Barrier(2)

    def run(name: str, allowed: bool) -> None:
        with deviceguard.strict(device_to_host="disallow"):
            region = deviceguard.transfers(device_to_host="allow") if allowed else _nothing()
            with region:
                inside.wait(30)
                try:
                    bool(x.sum() > 0)
                    outcomes[name] = "allowed"
                except deviceguard.DeviceGuardError:
                    outcomes[name] = "disallowed"
                done.wait(30)

    threads = [threading.Thread(target=run, args=("one", True)), threading.Thread(target=run, args=("other", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == {"one": "allowed", "other": "disallowed"}


def test_a_region_of_one_task_is_not_one_of_another(x):
    outcomes: dict[str, str] = {}

    async def read(name: str) -> None:
        try:
            bool(x.sum() > 0)
            outcomes[name] = "allowed"
        except deviceguard.DeviceGuardError:
            outcomes[name] = "disallowed"

    async def one() -> None:
        with deviceguard.transfers(device_to_host="disallow"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await read("one")

    async def other() -> None:
        await asyncio.sleep(0)
        await read("other")

    async def both() -> None:
        await asyncio.gather(one(), other())

    asyncio.run(both())

    assert outcomes == {"one": "disallowed", "other": "allowed"}


def test_what_the_compiler_does_is_exempt(x):
    @torch.compile(backend="eager")
    def scaled(value: torch.Tensor) -> torch.Tensor:
        return value * torch.tensor(2.0) + value.sum().sign()

    with deviceguard.strict(host_to_device="disallow_explicit", device_to_host="disallow_explicit"):
        scaled(x)


def test_settings_by_keyword_environment_and_file(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.deviceguard]\nhost_to_device = "log"\ndevice_to_host = "log"\n')
    environment = {"DEVICEGUARD_DEVICE_TO_HOST": "disallow", "DEVICEGUARD_DEVICE_TO_DEVICE": "log"}

    settings = load({"device_to_device": "disallow_explicit"}, environment, str(tmp_path))

    assert (settings.host_to_device, settings.device_to_host) == ("log", "disallow")
    assert settings.device_to_device == "disallow_explicit"
    assert settings.watches_transfers
    assert not load({}, {}, str(tmp_path.parent)).watches_transfers


def test_an_unknown_level_is_told_with_the_closest():
    with pytest.raises(deviceguard.SettingsError, match="Did you mean 'disallow'"):
        deviceguard.transfers(device_to_host="dissallow")
    with pytest.raises(deviceguard.SettingsError, match="device_to_host in the arguments"):
        deviceguard.watch(device_to_host="never")
