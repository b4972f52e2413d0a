"""The pytest plugin: a guard around each test, by an option, a marker or the fixture ``deviceguard``.

Nothing of it is imported, torch least of all, before a test is guarded.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deviceguard.testing import GuardedTest

_POLICIES = ("off", "warn", "strict", "migrate")
_GUARD: pytest.StashKey[GuardedTest] = pytest.StashKey()
_MARKER = "deviceguard"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options and their ini settings."""
    group = parser.getgroup("deviceguard", "deviceguard: devices, dtypes, optimizers and host syncs of PyTorch code")
    group.addoption(
        "--deviceguard", metavar="POLICY", choices=_POLICIES, help=f"guard each test: {', '.join(_POLICIES)}"
    )
    group.addoption(
        "--deviceguard-simulate", metavar="DEVICE", help="run guarded tests on a simulated device: cuda, cuda:2"
    )
    parser.addini("deviceguard", "guard each test under this policy", default="off")
    parser.addini("deviceguard_simulate", "run guarded tests on this simulated device", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known and look at the options."""
    config.addinivalue_line(
        "markers",
        "deviceguard(policy='warn', simulate=None, **settings): guard this test; settings as in deviceguard.watch",
    )
    if _policy(config) not in _POLICIES:
        raise pytest.UsageError(
            f"deviceguard: there is no policy {_policy(config)!r}; there are {', '.join(_POLICIES)}"
        )
    if _policy(config) != "off" or _simulated(config):
        _check(config)


def _check(config: pytest.Config) -> None:
    from deviceguard.errors import SettingsError
    from deviceguard.testing import GuardedTest

    try:
        GuardedTest(policy=_policy(config), simulate=_simulated(config))
    except SettingsError as problem:
        raise pytest.UsageError(f"deviceguard: {problem}") from None


def _policy(config: pytest.Config) -> str:
    return str(config.getoption("--deviceguard") or config.getini("deviceguard"))


def _simulated(config: pytest.Config) -> str | None:
    return config.getoption("--deviceguard-simulate") or config.getini("deviceguard_simulate") or None


def _settings(item: pytest.Item) -> dict[str, Any] | None:
    """The settings for a test, the marker nearest to it first; None where it is not to be guarded."""
    given: dict[str, Any] = {}
    policy = _policy(item.config)
    markers = list(item.iter_markers(_MARKER))
    if policy == "off" and (markers or "deviceguard" in getattr(item, "fixturenames", ())):
        policy = "warn"
    for marker in reversed(markers):
        if marker.args:
            pytest.fail("the marker deviceguard takes settings by name: deviceguard(policy='strict')", pytrace=False)
        given.update(marker.kwargs)
    given = {"policy": policy, "simulate": _simulated(item.config), **given}
    return None if given["policy"] == "off" else given


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Open the guard before the fixtures, so that it sees what they make."""
    given = _settings(item)
    if given is not None:
        from deviceguard.errors import SettingsError
        from deviceguard.testing import GuardedTest

        try:
            guard = item.stash[_GUARD] = GuardedTest(**given)
        except SettingsError as problem:
            pytest.fail(f"deviceguard: {problem}", pytrace=False)
        guard.open()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Close it with the test, so that what it finds at the end is the test's."""
    guard = item.stash.get(_GUARD, None)
    if guard is None:
        return (yield)
    try:
        result = yield
    except BaseException as error:
        guard.close(error if isinstance(error, Exception) else GeneratorExit())  # a skip is no failure to explain
        raise
    guard.close()
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """End the simulation after the fixtures."""
    try:
        return (yield)
    finally:
        guard = item.stash.get(_GUARD, None)
        if guard is not None:
            guard.leave()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach what was found to the test."""
    guard = item.stash.get(_GUARD, None)
    if guard is not None and call.when == "call":
        item.user_properties.extend(("deviceguard", _line(finding)) for finding in _plain(guard))
    report = yield
    if guard is not None and call.when == "call" and guard.unexpected:
        from deviceguard.testing import texts

        report.deviceguard = _plain(guard)  # type: ignore[attr-defined]  # xdist carries it over as plain data
        report.sections.append(("deviceguard", texts(guard.unexpected)))
    return report


def _plain(guard: GuardedTest) -> list[dict[str, Any]]:
    from deviceguard.reports.json_report import finding_dict

    return [finding_dict(finding) for finding in guard.unexpected]


@pytest.fixture
def deviceguard(request: pytest.FixtureRequest) -> GuardedTest:
    """The guard of this test: ``findings``, ``report``, ``assert_none("SYN")``, ``expect("OPT001")``, ``step()``."""
    guard = request.node.stash.get(_GUARD, None)
    if guard is None:  # the test's marker says off
        from deviceguard.testing import GuardedTest

        guard = GuardedTest(policy="off")
    return guard


# The summary; with pytest-xdist the reports of the workers have come to the process that writes it.


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A section with what was found, by rule, worst first."""
    found: dict[tuple[str, str, str], list[tuple[dict[str, Any], str]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for finding in getattr(report, "deviceguard", ()):
                key = (finding["severity"], finding["rule"], finding["name"])
                found.setdefault(key, []).append((finding, report.nodeid))
    if not found:
        return
    from deviceguard.findings import Severity

    terminalreporter.section("deviceguard")
    for severity, rule, name in sorted(found, key=lambda key: (Severity(key[0]).rank, key[1])):
        terminalreporter.write_line(f"{severity} {rule} {name}")
        for place, (finding, tests) in _by_place(found[severity, rule, name]).items():
            terminalreporter.write_line(f"  {place}  in {_named(tests)}")
            for line in finding["message"].splitlines():
                terminalreporter.write_line(f"    {line}")
            terminalreporter.write_line(f"    fix: {finding['fix']}")


def _by_place(found: list[tuple[dict[str, Any], str]]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """One finding for each line, with the tests that met it."""
    places: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for finding, test in found:
        places.setdefault(_place(finding), (finding, []))[1].append(test)
    return places


def _named(tests: list[str]) -> str:
    distinct = list(dict.fromkeys(tests))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} and {len(distinct) - 1} more"


def _line(finding: dict[str, Any]) -> str:
    return f"{finding['severity']} {finding['rule']} {finding['name']} at {_place(finding)}: {finding['message']}"


def _place(finding: dict[str, Any]) -> str:
    from deviceguard.reports.text import short_path

    return f"{short_path(finding['file'])}:{finding['line']}" if finding["file"] else "no line"
