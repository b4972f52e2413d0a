"""``allow(...)`` and ``# deviceguard: ignore[...]``: what they silence, and what they do not."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import textwrap
import threading

import pytest

import deviceguard
from deviceguard.allowing import is_allowed
from deviceguard.findings import Severity, Site
from deviceguard.ignoring import is_ignored
from tests.guarding import only_pings, ping, read


class TestAllow:
    @pytest.fixture(autouse=True)
    def pings(self, monkeypatch):
        only_pings(monkeypatch, severity=Severity.ADVICE)

    @pytest.mark.parametrize("selectors", [("DEV001",), ("dev",), ("OPT001", "DEV"), ("OPT001, DEV001",), ()])
    def test_silences_codes_and_families_in_a_region(self, selectors):
        with deviceguard.watch() as report:
            with deviceguard.allow(*selectors):
                ping(1)
                read(2)
            ping(3)
        assert [finding.message for finding in report.findings] == ["ping 3"]

    def test_does_not_silence_other_rules(self):
        with deviceguard.watch() as report, deviceguard.allow("OPT001"):
            ping()
        assert len(report) == 1

    def test_an_unknown_rule_is_told_with_the_closest(self):
        with pytest.raises(deviceguard.SettingsError, match="Did you mean DEV001"):
            deviceguard.allow("DVE001")

    def test_regions_nest_and_end_with_exceptions(self):
        with deviceguard.allow("DEV001"):
            with pytest.raises(ValueError), deviceguard.allow("OPT001"):
                raise ValueError
            assert (is_allowed("DEV001"), is_allowed("OPT001")) == (True, False)
        assert not is_allowed("DEV001")

    def test_one_object_serves_many_regions(self):
        quiet = deviceguard.allow("DEV001")
        with quiet, quiet:
            assert is_allowed("DEV001")
        assert not is_allowed("DEV001")

    def test_other_threads_are_not_inside(self):
        seen = []
        with deviceguard.allow("DEV001"):
            thread = threading.Thread(target=lambda: seen.append(is_allowed("DEV001")))
            thread.start()
            thread.join()
        assert seen == [False]

    def test_other_tasks_are_not_inside(self):
        async def allowing(inside, checked):
            with deviceguard.allow("DEV001"):
                inside.set()
                await checked.wait()

        async def both():
            inside, checked = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(allowing(inside, checked))
            await inside.wait()
            seen = is_allowed("DEV001")
            checked.set()
            await task
            return seen

        assert asyncio.run(both()) is False

    @pytest.mark.parametrize("decorate", [deviceguard.allow, deviceguard.allow("DEV")], ids=["bare", "called"])
    def test_a_function(self, decorate):
        @decorate
        def log():
            return is_allowed("DEV001")

        assert log()
        assert not is_allowed("DEV001")

    def test_the_consumer_of_a_generator_is_not_inside(self):
        @deviceguard.allow("DEV001")
        def values():
            try:
                yield is_allowed("DEV001")
                yield is_allowed("DEV001")
            finally:
                seen.append(is_allowed("DEV001"))

        seen = []
        for value in values():
            seen += [value, is_allowed("DEV001")]
        assert inspect.isgeneratorfunction(values)
        assert seen == [True, False, True, False, True]

    def test_generators_that_end_out_of_order(self):
        def region(code):
            with deviceguard.allow(code):
                yield

        one, other = region("DEV001"), region("OPT001")
        next(one), next(other), one.close()
        assert (is_allowed("DEV001"), is_allowed("OPT001")) == (False, True)
        other.close()
        assert not is_allowed("OPT001")

    def test_a_coroutine(self):
        @deviceguard.allow("DEV001")
        async def log():
            await asyncio.sleep(0)
            return is_allowed("DEV001")

        assert inspect.iscoroutinefunction(log)
        assert asyncio.run(log())


class TestIgnore:
    @pytest.fixture
    def ignored(self, tmp_path):
        def ask(text, line, code="SYN001"):
            path = tmp_path / "train.py"
            path.write_text(textwrap.dedent(text).lstrip("\n"))
            linecache.checkcache(str(path))
            source = linecache.getline(str(path), line).strip() or None
            return is_ignored(code, Site(str(path), line, source=source))

        return ask

    @pytest.mark.parametrize(
        ("comment", "silences"),
        [
            ("# deviceguard: ignore[SYN001]", True),
            ("#deviceguard:ignore[syn001]", True),
            ("# DeviceGuard: ignore[DEV001, SYN001]", True),
            ("# deviceguard: ignore[SYN]", True),
            ("# deviceguard: ignore [SYN001]", True),
            ("# deviceguard: ignore", True),
            ("# a scalar, please  # deviceguard: ignore[SYN001] because it is", True),
            ("# deviceguard: ignore[SYN002]", False),
            ("# deviceguard: ignore[]", False),
            ("# noqa", False),
            ("", False),
        ],
    )
    def test_a_comment_on_the_line(self, ignored, comment, silences):
        assert ignored(f"x = loss.item()  {comment}\n", 1) is silences

    @pytest.mark.parametrize("line", [1, 2, 3, 4])
    @pytest.mark.parametrize("marked", [1, 2, 3, 4])
    def test_a_comment_on_any_line_of_the_statement(self, ignored, line, marked):
        lines = ["log(", "    loss.item(),", "    step,", ")"]
        lines[marked - 1] += "  # deviceguard: ignore[SYN001]"
        assert ignored("\n".join(lines) + "\n", line)

    COMPOUND = """
    for x in (
        loader  # deviceguard: ignore[SYN001]
    ):
        print(x)
        y = [
            x.item(),
        ]  # deviceguard: ignore[SYN001]
        if x:  # deviceguard: ignore[SYN001]
            print(y)
        else:
            print(x)
    print(x)
    """

    @pytest.mark.parametrize(
        ("line", "silences"),
        [
            (1, True),
            (2, True),
            (3, True),
            (4, False),
            (5, True),
            (6, True),
            (8, True),
            (9, False),
            (11, False),
            (12, False),
        ],
    )
    def test_of_a_compound_statement_only_the_header(self, ignored, line, silences):
        assert ignored(self.COMPOUND, line) is silences

    def test_two_statements_in_a_line_share_the_comment(self, ignored):
        assert ignored("a = x.item(); b = y.item()  # deviceguard: ignore[SYN001]\n", 1)

    def test_a_changed_file_is_read_again(self, ignored):
        assert ignored("x.item()  # deviceguard: ignore\n", 1)
        assert not ignored("x.item()\n", 1)

    def test_source_that_does_not_parse_counts_line_by_line(self, ignored):
        assert ignored("print x.item()  # deviceguard: ignore\n(\n", 1)
        assert not ignored("print x.item()  # deviceguard: ignore\n(\n", 2)

    def test_a_site_without_source(self):
        assert not is_ignored("SYN001", None)
        assert not is_ignored("SYN001", Site("<string>", 3))
        assert not is_ignored("SYN001", Site("/nowhere.py", 0))
        assert is_ignored("SYN001", Site("<cell 1>", 3, source="x.item()  # deviceguard: ignore"))

    def test_a_finding_is_silenced(self, monkeypatch):
        only_pings(monkeypatch)
        with deviceguard.strict() as report:
            ping_quietly()
        assert len(report) == 0


def ping_quietly():
    from deviceguard.hub import HUB
    from tests.events import Ping

    HUB.emit(
        Ping(1),
    )  # deviceguard: ignore[DEV]
