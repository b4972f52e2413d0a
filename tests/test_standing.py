"""A guard that stands for the life of a process."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import deviceguard
from deviceguard.autostart import start_from_environment
from deviceguard.hub import HUB
from deviceguard.standing import STANDING


@pytest.fixture(autouse=True)
def _gone_afterwards():
    yield
    STANDING.leave()


def train_what_is_not_there():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.weight, net.bias = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(2))
    for _ in range(4):
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()


class TestStartAndStop:
    """``deviceguard.start()`` and ``deviceguard.stop()``."""

    def test_what_happens_between_is_reported(self):
        report = deviceguard.start(policy="warn")
        with pytest.warns(deviceguard.DeviceGuardWarning, match="OPT001"):
            train_what_is_not_there()

        assert deviceguard.stop() is report
        assert [finding.rule for finding in report.findings] == ["OPT001"]
        assert HUB.sessions == ()

    def test_a_second_start_changes_nothing(self, caplog):
        report = deviceguard.start()

        assert deviceguard.start(select="DEV") is report
        assert "select" in caplog.text
        assert len(HUB.sessions) == 1

    def test_stop_without_start(self):
        assert len(deviceguard.stop()) == 0

    def test_an_unknown_setting_is_the_callers_error(self):
        with pytest.raises(deviceguard.SettingsError, match="select"):
            deviceguard.start(selct="DEV")


class TestEnvironment:
    """What ``import torch`` calls."""

    @pytest.fixture(autouse=True)
    def _no_command_line(self, monkeypatch):
        """Another test of this process may have imported it, and ``deviceguard run`` opens its own guard."""
        monkeypatch.delitem(sys.modules, "deviceguard.cli.run", raising=False)

    @pytest.mark.parametrize(
        ("variables", "said"),
        [
            ({"DEVICEGUARD": "wran"}, "warn"),
            ({"DEVICEGUARD": "warn", "DEVICEGUARD_SELECT": "OPT999"}, "OPT999"),
            ({"DEVICEGUARD": "warn", "DEVICEGUARD_SELCT": "OPT"}, "SELECT"),
        ],
    )
    def test_what_is_wrong_takes_one_line(self, variables, said, monkeypatch, capsys):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        start_from_environment()
        printed = capsys.readouterr().err

        assert printed.startswith("deviceguard stays off: ")
        assert said in printed
        assert printed.count("\n") == 1
        assert HUB.sessions == ()

    def test_a_broken_pyproject(self, monkeypatch, tmp_path, capsys):
        (tmp_path / "pyproject.toml").write_text("[tool.deviceguard\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DEVICEGUARD", "warn")
        start_from_environment()

        assert capsys.readouterr().err.count("\n") == 1

    def test_a_package_that_is_half_removed(self, monkeypatch, capsys):
        monkeypatch.setenv("DEVICEGUARD", "warn")
        monkeypatch.setitem(sys.modules, "deviceguard.standing", None)
        start_from_environment()

        assert "deviceguard stays off: import of deviceguard.standing" in capsys.readouterr().err

    def test_unset_it_does_nothing(self, monkeypatch):
        monkeypatch.delenv("DEVICEGUARD", raising=False)
        start_from_environment()

        assert STANDING.session is None

    @pytest.mark.parametrize("policy", ["warn", "strict", "migrate", "1"])
    def test_set_it_stands(self, policy, monkeypatch):
        monkeypatch.setenv("DEVICEGUARD", policy)
        start_from_environment()

        assert HUB.sessions == (STANDING.session,)
