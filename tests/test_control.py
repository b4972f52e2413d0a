"""A small file that changes the guard of a running job."""

from __future__ import annotations

import json

import pytest

import deviceguard
from deviceguard.hub import HUB
from tests.guarding import only_pings, ping

pytestmark = pytest.mark.filterwarnings("ignore::deviceguard.errors.DeviceGuardWarning")


@pytest.fixture(autouse=True)
def _pings(monkeypatch):
    only_pings(monkeypatch)
    monkeypatch.setattr("deviceguard.control.expand", lambda words: set(words))


@pytest.fixture
def control(tmp_path):
    path = tmp_path / "control"

    def write(text):
        path.write_text(text)
        HUB.sessions[-1]._control.look()

    write.path = path
    return write


def rule_of(report):
    ping(1)
    return report.findings[0].rule


class TestControl:
    def test_a_rule_off_and_on_again(self, control):
        with deviceguard.watch(control=control.path) as report:
            code = rule_of(report)
            control(f"off {code}\n")
            ping(2)
            control(f"on {code}  # again\n")
            ping(3)

        assert [finding.message for finding in report.findings] == ["ping 1", "ping 3"]

    def test_the_policy(self, control):
        with deviceguard.watch(control=control.path):
            ping(1)
            control("policy strict\n")
            with pytest.raises(deviceguard.DeviceGuardError):
                ping(2)

    @pytest.mark.parametrize("text", ["off", "policy off"])
    def test_the_guard(self, text, control):
        with deviceguard.watch(control=control.path) as report:
            ping(1)
            control(text)
            ping(2)

        assert len(report) == 1
        assert report.internal_errors == 0

    def test_the_report(self, control, tmp_path, capsys):
        with deviceguard.watch(control=control.path):
            ping(1)
            control("report\n")
        assert "ping 1" in capsys.readouterr().err

        with deviceguard.watch(control=control.path, json=tmp_path / "out.json"):
            ping(2)
            (tmp_path / "out.json").unlink()
            control("report \n")
            assert len(json.loads((tmp_path / "out.json").read_text())["findings"]) == 1

    def test_what_it_does_not_know_is_told(self, control, caplog):
        with deviceguard.watch(control=control.path) as report:
            control("stop everything\n\noff\x00\n")
            ping(1)

        assert len(report) == 1
        assert "cannot do 'stop everything'" in caplog.text

    def test_its_thread_ends_with_the_guard(self, control):
        with deviceguard.watch(control=control.path):
            watched = HUB.sessions[-1]._control

        assert watched._stopped.is_set()
