"""The pytest plugin, in test suites of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import warnings
import xml.etree.ElementTree
from typing import Any

import pytest

import deviceguard
import deviceguard.testing

HEAD = """
import pytest
import torch
from torch import nn

device = "cuda"


def wrong():
    net = nn.Linear(4, 2).to(device)
    images = torch.ones(3, 4)
    return net(images)


def stale():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.weight = nn.Parameter(torch.ones(2, 4))
    net.bias = nn.Parameter(torch.ones(2))
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()


def right():
    net = nn.Linear(4, 2).to(device)
    return net(torch.ones(3, 4, device=device))
"""
WRONG = next(number for number, text in enumerate(HEAD.strip().splitlines(), 1) if "return net(images)" in text)
STALE = next(number for number, text in enumerate(HEAD.strip().splitlines(), 1) if "optimizer.step()" in text)


@pytest.fixture(scope="module")
def everything_imported():
    """What torch and the guard import late is here before pytester looks at ``sys.modules``, which it restores."""
    space: dict[str, Any] = {}
    exec(HEAD, space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for guard in (deviceguard.watch(), deviceguard.strict(), deviceguard.migrate()):
            for part in ("stale", "right", "wrong"):
                with contextlib.suppress(Exception), deviceguard.simulate("cuda"), guard:
                    space[part]()


@pytest.fixture
def suite(pytester, everything_imported):
    """Makes a module of tests and runs it in this process."""

    def run(body, *options, ini=""):
        pytester.makeini("[pytest]\n" + textwrap.dedent(ini))
        pytester.makepyfile(test_it=HEAD + textwrap.dedent(body))
        quick = ("-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short")
        return pytester.runpytest_inprocess(*quick, "-W", "default::deviceguard.DeviceGuardWarning", *options)

    return run


def test_off_by_default(suite):
    result = suite("def test_stale(): stale()")

    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*OPT001*")


@pytest.mark.parametrize(
    ("options", "ini"),
    [(["--deviceguard=warn"], ""), ([], "deviceguard = warn")],
    ids=["option", "ini"],
)
def test_findings_stand_in_the_summary_by_rule(suite, options, ini):
    result = suite("def test_one(): stale()\ndef test_two(): stale()", *options, ini=ini)

    result.assert_outcomes(passed=2, warnings=2)
    result.stdout.fnmatch_lines(
        [
            "*= deviceguard =*",
            "error OPT001 stale-parameters",
            f"  test_it.py:{STALE}  in test_it.py::test_one and 1 more",
            "    optimizer*",
            "    fix: *",
        ]
    )


def test_strict_fails_the_test_at_the_line(suite):
    result = suite("def test_stale(): stale()", "--deviceguard=strict")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *DeviceGuardError: OPT001*", "*deviceguard*", "error OPT001*"])


def test_migrate_repairs(suite):
    result = suite(
        "def test_wrong(): assert wrong().device.type == 'cuda'",
        "--deviceguard=migrate",
        "--deviceguard-simulate=cuda",
    )

    result.assert_outcomes(passed=1, warnings=1)


def test_simulation_by_option_and_ini(suite):
    body = "def test_right(): assert right().is_cuda"

    suite(body, "--deviceguard=strict", "--deviceguard-simulate=cuda").assert_outcomes(passed=1)
    suite(body, "--deviceguard=strict", ini="deviceguard_simulate = cuda").assert_outcomes(passed=1)


def test_a_refusal_is_explained_in_the_failed_test(suite):
    result = suite("def test_wrong(): wrong()", "--deviceguard=warn", "--deviceguard-simulate=cuda")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *RuntimeError: Expected all tensors to be on the same device*",
            "*- deviceguard -*",
            "error DEV001 input-device: images is on cpu, *",
            f"  at test_it.py:{WRONG}  return net(images)",
            "  fix: images = images.to('cuda:0') before the call",
        ]
    )


class TestMarker:
    def test_it_guards_one_test(self, suite):
        result = suite(
            """
            @pytest.mark.deviceguard(policy="strict")
            def test_guarded(): stale()

            def test_plain(): stale()
            """
        )

        result.assert_outcomes(failed=1, passed=1)

    def test_the_nearest_wins(self, suite):
        result = suite(
            """
            @pytest.mark.deviceguard(policy="strict")
            class TestAll:
                @pytest.mark.deviceguard(policy="off")
                def test_off(self): stale()

                @pytest.mark.deviceguard(ignore=["OPT001", "OPT003"])
                def test_ignored(self): stale()

                @pytest.mark.deviceguard(simulate="cuda", policy="warn")
                def test_simulated(self): right()
            """
        )

        result.assert_outcomes(passed=3)

    @pytest.mark.parametrize(
        ("marker", "message"),
        [
            ("ignore=['OPT0O1']", "*OPT0O1*"),
            ("policy='strickt'", "*Did you mean 'strict'?*"),
            ("simulated='cuda'", "*Did you mean 'simulate'?*"),
            ("'strict'", "*takes settings by name*"),
        ],
    )
    def test_what_it_does_not_know(self, suite, marker, message):
        result = suite(f"@pytest.mark.deviceguard({marker})\ndef test_it(): pass")

        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([message])


class TestFixture:
    def test_the_live_report(self, suite):
        result = suite(
            """
            def test_it(deviceguard):
                assert deviceguard.findings == []
                deviceguard.assert_none()
                with pytest.warns(UserWarning):
                    stale()
                assert [finding.rule for finding in deviceguard.expect("OPT001")] == ["OPT001"]
                deviceguard.assert_none("DEV")
            """
        )

        result.assert_outcomes(passed=1)
        result.stdout.no_fnmatch_line("*= deviceguard =*")

    def test_what_should_not_be_there(self, suite):
        result = suite(
            """
            def test_after(deviceguard):
                stale()
                deviceguard.assert_none("OPT")

            def test_before(deviceguard):
                deviceguard.assert_none("OPT")
                stale()
            """
        )

        result.assert_outcomes(failed=2, warnings=2)
        result.stdout.fnmatch_lines(["E *deviceguard found what should not be there:", "E *error OPT001*"])

    def test_what_should_be_there(self, suite):
        result = suite(
            f"""
            def test_missing(deviceguard):
                deviceguard.expect("OPT001")

            def test_elsewhere(deviceguard):
                deviceguard.expect("OPT001", line=1)
                stale()

            def test_there(deviceguard):
                deviceguard.expect("OPT001", line={STALE})
                stale()
            """
        )

        result.assert_outcomes(failed=2, passed=1, warnings=2)
        result.stdout.fnmatch_lines(
            [
                "E *deviceguard was to find OPT001; it found nothing",
                "E *deviceguard was to find OPT001 in line 1; found instead:",
            ]
        )

    def test_what_only_the_end_shows(self, suite):
        result = suite(
            """
            @pytest.fixture
            def trained():
                net = nn.Linear(4, 2)
                best = net.state_dict()
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                return net, best, optimizer

            def test_snapshot(deviceguard, trained):
                net, best, optimizer = trained
                deviceguard.expect("CPY002")
                for _ in range(3):
                    optimizer.zero_grad()
                    net(torch.ones(3, 4)).sum().backward()
                    optimizer.step()
                net.load_state_dict(best)
            """
        )

        result.assert_outcomes(passed=1, warnings=1)


def test_a_set_up_that_fails_and_a_skip_leave_nothing_behind(suite):
    result = suite(
        """
        @pytest.fixture
        def broken():
            raise ValueError("no data")

        def test_broken(broken): pass

        def test_skipped():
            pytest.skip("not now")

        def test_after():
            from deviceguard.hub import HUB
            from deviceguard.simulate import active
            assert len(HUB.sessions) == 1 and active()
        """,
        "--deviceguard=strict",
        "--deviceguard-simulate=cuda",
    )

    result.assert_outcomes(errors=1, skipped=1, passed=1)


def test_junit_properties(suite, pytester):
    suite("def test_stale(): stale()", "--deviceguard=warn", "--junitxml=out.xml", "-o", "junit_family=xunit2")

    tree = xml.etree.ElementTree.parse(pytester.path / "out.xml")
    [found] = [p.get("value") for p in tree.iter("property") if p.get("name") == "deviceguard"]
    assert found.startswith(f"error OPT001 stale-parameters at test_it.py:{STALE}: ")


def test_findings_of_xdist_workers_come_together(pytester):
    pytester.makepyfile(test_it=HEAD + "\ndef test_one(): stale()\n\n\ndef test_two(): stale()\n")
    result = pytester.runpytest_subprocess("-n", "1", "--deviceguard=warn", "-p", "no:randomly")

    result.assert_outcomes(passed=2, warnings=2)
    result.stdout.fnmatch_lines(["error OPT001 stale-parameters", "  *in test_it.py::test_* and 1 more"])


def test_coroutines(suite):
    result = suite(
        """
        import asyncio

        async def work():
            await asyncio.sleep(0)
            stale()

        def test_it(deviceguard):
            deviceguard.expect("OPT001")
            asyncio.run(work())
        """
    )

    result.assert_outcomes(passed=1, warnings=1)


def test_an_unknown_policy_in_the_ini_file(suite):
    result = suite("def test_it(): pass", ini="deviceguard = strikt")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*there is no policy 'strikt'*"])


def test_torch_is_not_imported_where_no_test_is_guarded(pytester):
    pytester.makepyfile("import sys\ndef test_it(): assert not {'torch', 'deviceguard.testing'} & set(sys.modules)")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", "-q"], cwd=pytester.path, capture_output=True, text=True
    )

    assert "1 passed" in done.stdout
