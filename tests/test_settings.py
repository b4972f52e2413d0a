"""Where settings come from, which one wins, and what a person reads who mistypes one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from deviceguard.errors import SettingsError
from deviceguard.settings import Settings, load


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


def settings(given=None, environment=None, start=None):
    return load(given or {}, environment or {}, os.fspath(start) if start else "/")


def complaint(*args, **kwargs):
    with pytest.raises(SettingsError) as caught:
        settings(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_any_the_defaults_are_in_force():
    assert settings() == Settings()
    assert settings().codes()


def test_an_argument_beats_the_environment_and_that_beats_pyproject(folder):
    (folder / "pyproject.toml").write_text('[tool.deviceguard]\nselect = "DEV"\nignore = ["SYN"]\npolicy = "strict"')
    variables = {"DEVICEGUARD_SELECT": "DEV001,SYN", "DEVICEGUARD": "migrate"}
    assert settings({}, {}, folder).select == ("DEV",)
    assert settings({}, variables, folder).select == ("DEV001", "SYN")
    assert settings({"select": "syn001"}, variables, folder).select == ("SYN001",)
    assert settings({}, {}, folder).policy == "strict"
    assert settings({}, variables, folder).policy == "migrate"
    assert settings({"policy": "warn"}, variables, folder).policy == "warn"
    assert settings({"policy": "warn"}, variables, folder).ignore == ("SYN",)


def test_none_counts_as_not_given():
    assert settings({"select": None}, {"DEVICEGUARD_SELECT": "DEV"}).select == ("DEV",)


def test_the_nearest_pyproject_counts_even_where_it_says_nothing(folder):
    inner = folder / "inner"
    inner.mkdir()
    (folder / "pyproject.toml").write_text('[tool.deviceguard]\npolicy = "strict"')
    assert settings(start=inner).policy == "strict"
    (inner / "pyproject.toml").write_text("")
    assert settings(start=inner).policy == "warn"


def test_keys_may_be_written_with_dashes(folder):
    (folder / "pyproject.toml").write_text("[tool.deviceguard]\nwarmup-steps = 7")
    assert settings(start=folder).warmup_steps == 7


def test_numbers_are_read_from_text():
    found = settings({}, {"DEVICEGUARD_WARMUP_STEPS": "7", "DEVICEGUARD_SYNC_SHARE": "0.25"})
    assert (found.warmup_steps, found.sync_share) == (7, 0.25)


def test_selection_and_exemption_make_the_codes():
    assert settings({"select": "DEV", "ignore": "DEV001"}).codes() == settings({"select": ["dev"]}).codes() - {"DEV001"}


def test_zero_and_one_switch_off_and_on():
    assert settings({}, {"DEVICEGUARD": "0"}).policy == "off"
    assert settings({}, {"DEVICEGUARD": "1"}).policy == "warn"


def test_the_variable_that_hands_simulation_on_is_no_setting():
    assert settings({}, {"DEVICEGUARD_SIMULATE": "cuda", "DEVICEGUARD_DEBUG": "1"}) == Settings()


def test_a_report_goes_to_the_folder_that_was_current_at_the_start(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert settings({"json": "out.json"}).json == str(folder / "out.json")


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().policy = "strict"


class TestComplaints:
    def test_name_the_closest_setting(self, folder):
        assert complaint({"selct": "DEV"}) == "Unknown setting 'selct' in the arguments. Did you mean 'select'?"
        assert complaint({}, {"DEVICEGUARD_IGNOR": "DEV"}) == (
            "Unknown setting 'DEVICEGUARD_IGNOR' in the environment. Did you mean 'DEVICEGUARD_IGNORE'?"
        )
        (folder / "pyproject.toml").write_text("[tool.deviceguard]\nwarm_up = 1")
        assert complaint(start=folder) == (
            f"Unknown setting 'warm_up' in {folder / 'pyproject.toml'}. Did you mean 'warmup_steps'?"
        )

    def test_list_all_where_none_is_close(self):
        assert "Known are " in complaint({"zzz": 1})

    def test_name_the_closest_rule_and_the_place(self):
        text = complaint({}, {"DEVICEGUARD_SELECT": "DVE001"})
        assert "Did you mean DEV001?" in text
        assert text.startswith("select in the environment: There is no rule or family 'DVE001'.")

    def test_name_the_closest_policy(self):
        text = complaint({}, {"DEVICEGUARD": "wran"})
        assert "Did you mean 'warn'?" in text
        assert "environment" in text

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"warmup_steps": "soon"}, "a whole number, 0 or more"),
            ({"warmup_steps": -1}, "a whole number, 0 or more"),
            ({"warmup_steps": 1.5}, "a whole number, 0 or more"),
            ({"warmup_steps": True}, "a whole number, 0 or more"),
            ({"sync_share": 2}, "between 0 and 1"),
            ({"sync_share": "nan"}, "between 0 and 1"),
            ({"json": 3}, "it takes text"),
            ({"select": 3}, "select"),
            ({"select": "D"}, "no rule or family 'D'"),
            ({"simulate": "cuda:x"}, "number of devices"),
            ({"simulate": "gpu"}, "one of cuda"),
        ],
    )
    def test_say_what_a_setting_takes(self, given, expected):
        assert expected in complaint(given)

    def test_a_broken_pyproject_is_named(self, folder):
        (folder / "pyproject.toml").write_text("[tool.deviceguard\n")
        assert str(folder / "pyproject.toml") in complaint(start=folder)

    def test_a_table_is_wanted(self, folder):
        (folder / "pyproject.toml").write_text("[tool]\ndeviceguard = 1")
        assert "must be a table" in complaint(start=folder)


def test_loading_settings_needs_no_torch():
    code = (
        "import sys; from deviceguard.settings import load; load({'simulate': 'cuda'}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_a_base_gives_way_to_everything_that_is_set(tmp_path):
    base = {"sample_period": 1}

    assert load({}, {}, str(tmp_path), base).sample_period == 1
    assert load({}, {"DEVICEGUARD_SAMPLE_PERIOD": "50"}, str(tmp_path), base).sample_period == 50
    assert load({"sample_period": 20}, {}, str(tmp_path), base).sample_period == 20
