"""What a user imports: there, documented, cheap, and pleasant to misuse."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import pickle
import subprocess
import sys

import pytest

import deviceguard

PUBLIC = (
    "DeviceGuardError",
    "DeviceGuardWarning",
    "Finding",
    "Report",
    "SettingsError",
    "Severity",
    "Site",
    "Subject",
    "allow",
    "migrate",
    "simulate",
    "start",
    "stop",
    "strict",
    "transfers",
    "watch",
)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


class TestNames:
    def test_public_names_are_these_and_sorted(self):
        assert tuple(deviceguard.__all__) == PUBLIC

    @pytest.mark.parametrize("name", PUBLIC)
    def test_each_is_there_and_documented(self, name):
        assert inspect.getdoc(getattr(deviceguard, name))

    def test_star_import(self):
        namespace = {}
        exec("from deviceguard import *", namespace)

        assert set(PUBLIC) <= namespace.keys()

    def test_dir_lists_them_before_they_are_used(self):
        assert set(PUBLIC) <= set(eval(python("import deviceguard; print(dir(deviceguard))")))

    def test_unknown_names_are_attribute_errors(self):
        with pytest.raises(AttributeError, match="wach"):
            deviceguard.wach  # noqa: B018

    def test_version_is_that_of_the_distribution(self):
        assert deviceguard.__version__ == importlib.metadata.version("deviceguard")

    @pytest.mark.parametrize("name", ["DeviceGuardError", "DeviceGuardWarning", "SettingsError"])
    def test_tracebacks_show_the_public_path(self, name):
        assert getattr(deviceguard, name).__module__ == "deviceguard"


class TestImport:
    def test_imports_no_torch(self):
        assert python("import sys, deviceguard; print('torch' in sys.modules)").strip() == "False"

    def test_the_check_itself_can_fail(self):
        assert python("import sys, torch, deviceguard; print('torch' in sys.modules)").strip() == "True"

    def test_the_catalogue_imports_no_torch(self):
        code = (
            "import sys; from deviceguard.rules.registry import rule_classes; "
            "assert rule_classes(); print('torch' in sys.modules)"
        )

        assert python(code).strip() == "False"

    def test_settings_errors_import_no_torch(self):
        code = """
import sys, deviceguard
try:
    deviceguard.watch(selct="DEV")
except deviceguard.SettingsError as error:
    print("torch" in sys.modules, "select" in str(error))
"""

        assert python(code).strip() == "False True"

    def test_imports_the_standard_library_only(self):
        code = "import sys; before = set(sys.modules); import deviceguard; print(*(set(sys.modules) - before))"
        outside = {name.partition(".")[0] for name in python(code).split()} - sys.stdlib_module_names

        assert outside == {"deviceguard"}


class TestGuards:
    @pytest.mark.parametrize("name", ["watch", "strict", "migrate"])
    def test_context_manager_gives_the_report(self, name):
        with getattr(deviceguard, name)() as report:
            assert isinstance(report, deviceguard.Report)

        assert report.findings == []
        assert len(report) == 0
        assert report.worst is None
        assert report.of("SYN") == []

    @pytest.mark.parametrize("name", ["watch", "strict", "migrate", "simulate"])
    def test_decorator_passes_everything_through(self, name):
        @getattr(deviceguard, name)()
        def function(one, *, two):
            """Docs."""
            return one, two

        assert function(1, two=2) == (1, 2)
        assert function.__name__ == "function"
        assert function.__doc__ == "Docs."

    def test_decorator_may_recurse(self):
        @deviceguard.watch()
        def function(depth):
            return 0 if depth == 0 else 1 + function(depth - 1)

        assert function(3) == 3

    def test_allow_is_both_as_well(self):
        @deviceguard.allow("SYN")
        def function():
            return 1

        with deviceguard.allow("SYN001", "DEV"):
            assert function() == 1

    def test_an_exception_is_never_swallowed(self):
        for guard in (deviceguard.watch(), deviceguard.strict(), deviceguard.allow("DEV"), deviceguard.simulate()):
            error = ValueError("the user's own")
            with pytest.raises(ValueError) as caught, guard:
                raise error
            assert caught.value is error

    def test_a_guard_is_not_opened_twice_at_once(self):
        guard = deviceguard.watch()
        with guard, pytest.raises(RuntimeError, match="already open"), guard:
            pass

    def test_a_guard_may_be_opened_again(self):
        guard = deviceguard.watch()
        with guard as first:
            pass
        with guard as second:
            pass

        assert first is not second

    @pytest.mark.parametrize("name", ["watch", "strict", "migrate"])
    def test_settings_are_checked_at_once(self, name):
        with pytest.raises(deviceguard.SettingsError, match="select"):
            getattr(deviceguard, name)(selct="DEV")


class TestFindings:
    finding = deviceguard.Finding(
        rule="DEV001",
        name="input-device",
        severity=deviceguard.Severity.ERROR,
        message="images is on cpu",
        fix="move it",
        site=deviceguard.Site("train.py", 3, "<module>", "net(images)"),
        subjects=(deviceguard.Subject("images", "input", "cpu", "float32", (1, 784)),),
    )

    def test_are_plain_frozen_data(self):
        with pytest.raises(AttributeError):
            self.finding.rule = "DEV002"

        assert copy.copy(self.finding) == self.finding
        assert pickle.loads(pickle.dumps(self.finding)) == self.finding
        assert hash(self.finding) == hash(copy.deepcopy(self.finding))

    def test_the_error_carries_its_finding_through_pickle(self):
        error = pickle.loads(pickle.dumps(deviceguard.DeviceGuardError("text", self.finding)))

        assert str(error) == "text"
        assert error.finding == self.finding

    def test_severities_are_ordered(self):
        assert [severity.value for severity in sorted(deviceguard.Severity, key=lambda s: s.rank)] == [
            "error",
            "warning",
            "advice",
        ]
