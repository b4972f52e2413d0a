"""``watch``, ``strict`` and ``migrate`` around blocks and around functions of every kind."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
import threading
import warnings

import pytest

import deviceguard
from deviceguard.events import CallFailed, RunEnded
from deviceguard.hub import HUB
from deviceguard.rules.registry import rule_classes
from tests.guarding import only_pings, ping


@pytest.fixture(autouse=True)
def pings(monkeypatch):
    only_pings(monkeypatch)


def messages(report):
    return [finding.message for finding in report.findings]


class TestBlocks:
    def test_watch_warns_and_reports(self):
        with pytest.warns(deviceguard.DeviceGuardWarning, match="ping 1"), deviceguard.watch() as report:
            ping()
        assert messages(report) == ["ping 1"]

    def test_strict_raises_at_the_line_and_carries_the_finding(self):
        with pytest.raises(deviceguard.DeviceGuardError, match="ping 1") as caught, deviceguard.strict():
            ping()
        assert caught.value.finding.message == "ping 1"
        assert caught.value.finding.site.source == "HUB.emit(Ping(number))"
        assert caught.value.__cause__ is None

    def test_an_error_survives_pickling(self):
        with pytest.raises(deviceguard.DeviceGuardError) as caught, deviceguard.strict():
            ping()
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.finding) == (str(caught.value), caught.value.finding)

    def test_nothing_is_open_after_an_exception_of_any_kind(self):
        for error in (ValueError, KeyboardInterrupt, SystemExit, GeneratorExit):
            with pytest.raises(error), deviceguard.watch():
                raise error
            assert HUB.sessions == ()

    def test_a_guard_is_entered_again_after_an_exception_with_a_fresh_report(self):
        guard = deviceguard.watch()
        with pytest.warns(deviceguard.DeviceGuardWarning), pytest.raises(ValueError), guard as first:
            ping()
            raise ValueError
        with guard as second:
            pass
        assert (messages(first), messages(second)) == (["ping 1"], [])
        assert guard.report is second

    def test_a_guard_cannot_be_entered_twice_at_a_time(self):
        guard = deviceguard.watch()
        with guard, pytest.raises(RuntimeError, match="make a new one"), guard:
            pass

    def test_of_nested_guards_the_inner_acts_and_both_record(self):
        with (
            deviceguard.watch() as outer,
            pytest.raises(deviceguard.DeviceGuardError),
            deviceguard.strict() as inner,
        ):
            ping()
        assert messages(outer) == messages(inner) == ["ping 1"]

    def test_nested_the_other_way_round_strict_waits(self):
        with deviceguard.strict() as outer:
            with pytest.warns(deviceguard.DeviceGuardWarning), deviceguard.watch() as inner:
                ping()
        assert messages(outer) == messages(inner) == ["ping 1"]

    def test_each_thread_has_its_own_guard(self):
        reports, entered = {}, threading.Barrier(2)

        def work(number):
            with deviceguard.watch() as reports[number]:
                entered.wait(10)
                ping(number)
                entered.wait(10)

        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
        with pytest.warns(deviceguard.DeviceGuardWarning):
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        assert {number: messages(report) for number, report in reports.items()} == {1: ["ping 1"], 2: ["ping 2"]}

    def test_a_thread_without_a_guard_of_its_own_is_heard_by_all(self):
        with pytest.warns(deviceguard.DeviceGuardWarning), deviceguard.watch() as report:
            thread = threading.Thread(target=ping)
            thread.start()
            thread.join()
        assert messages(report) == ["ping 1"]

    def test_a_wrong_setting_is_told_before_anything_runs(self):
        with pytest.raises(deviceguard.SettingsError, match="Did you mean 'select'"):
            deviceguard.watch(selct="DEV")

    def test_switched_off_it_does_nothing(self):
        from deviceguard.guard import Guard

        with Guard("off", {}) as report:
            ping()
            assert HUB.sessions == ()
        assert messages(report) == []

    def test_an_exception_that_is_explained_is_the_cause(self, monkeypatch):
        only_pings(monkeypatch, CallFailed, handler=lambda rule, event: [rule.finding("why", "fix")])
        torch = pytest.importorskip("torch")
        original = None
        with pytest.raises(deviceguard.DeviceGuardError) as caught, deviceguard.strict():
            try:
                torch.nn.Linear(3, 3)(torch.zeros(2, 3, dtype=torch.float64))
            except RuntimeError as error:
                original = error
                raise
        assert caught.value.__cause__ is original

    def test_exiting_well_is_no_reason_to_stay_quiet(self, monkeypatch):
        seen = []
        only_pings(monkeypatch, RunEnded, handler=lambda rule, event: seen.append(event.error))
        for error in (SystemExit(), SystemExit(0), SystemExit(1)):
            with pytest.raises(SystemExit), deviceguard.watch():
                raise error
        assert [type(error) for error in seen] == [type(None), type(None), SystemExit]

    def test_the_report_is_on_disk_before_anything_is_done_about_a_finding(self, tmp_path):
        path = tmp_path / "out.json"
        with pytest.raises(deviceguard.DeviceGuardError), deviceguard.strict(json=path):
            try:
                ping()
            finally:
                before = path.read_text()
        assert "ping 1" in before
        assert "ping 1" in path.read_text()


class TestFunctions:
    def test_a_function_keeps_its_name_page_and_value(self):
        @deviceguard.watch(select="DEV")
        def train(x, *, y=2):
            """Trains."""
            return x + y

        assert (train.__name__, train.__doc__, train(1, y=5)) == ("train", "Trains.", 6)
        assert inspect.signature(train) == inspect.signature(train.__wrapped__)

    @pytest.mark.parametrize("decorate", [deviceguard.watch, deviceguard.watch()], ids=["bare", "called"])
    def test_with_and_without_brackets(self, decorate):
        @decorate
        def train():
            ping()
            return 1

        with pytest.warns(deviceguard.DeviceGuardWarning):
            assert train() == 1

    def test_what_was_said_at_one_call_is_not_said_at_the_next(self):
        guard = deviceguard.watch()

        @guard
        def train():
            ping()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train()
            train()
        assert len(caught) == 1
        assert [finding.count for finding in guard.report.findings] == [2]

    def test_strict_raises_at_each_call(self):
        @deviceguard.strict
        def train():
            ping()

        for _ in range(2):
            with pytest.raises(deviceguard.DeviceGuardError):
                train()

    def test_recursion(self):
        @deviceguard.watch
        def down(n):
            return len(HUB.sessions) if n == 0 else down(n - 1)

        assert down(3) == 4

    def test_a_method(self):
        class Trainer:
            @deviceguard.watch
            def train(self):
                return self

        trainer = Trainer()
        assert trainer.train() is trainer

    def test_a_generator_stays_one_and_is_guarded_from_first_to_last(self):
        @deviceguard.watch
        def batches(n):
            got = []
            for number in range(n):
                got.append((yield (number, len(HUB.sessions))))
            return got

        assert inspect.isgeneratorfunction(batches)
        generator = batches(2)
        assert HUB.sessions == ()
        assert next(generator) == (0, 1)
        assert generator.send("a") == (1, 1)
        with pytest.raises(StopIteration) as end:
            generator.send("b")
        assert end.value.value == ["a", "b"]
        assert HUB.sessions == ()

    def test_a_generator_that_is_closed_or_thrown_into(self):
        seen = []

        @deviceguard.watch
        def batches():
            try:
                yield 1
            except ValueError:
                yield 2
            finally:
                seen.append(len(HUB.sessions))

        generator = batches()
        next(generator)
        generator.close()
        generator = batches()
        next(generator)
        assert generator.throw(ValueError()) == 2
        generator.close()
        assert (seen, HUB.sessions) == ([1, 1], ())

    def test_a_coroutine_function_stays_one(self):
        @deviceguard.watch
        async def train():
            await asyncio.sleep(0)
            return len(HUB.sessions)

        assert inspect.iscoroutinefunction(train)
        assert asyncio.run(train()) == 1
        assert HUB.sessions == ()

    def test_an_asynchronous_generator_stays_one(self):
        @deviceguard.watch
        async def batches():
            try:
                got = yield len(HUB.sessions)
                yield got
            except ValueError:
                yield "thrown"
            finally:
                await asyncio.sleep(0)

        async def consume():
            generator = batches()
            values = [await generator.__anext__(), await generator.asend("sent"), await generator.athrow(ValueError())]
            await generator.aclose()
            return [*values, len(HUB.sessions), [value async for value in batches()]]

        assert inspect.isasyncgenfunction(batches)
        assert asyncio.run(consume()) == [1, "sent", "thrown", 0, [1, None]]

    def test_a_class_is_refused_in_words(self):
        with pytest.raises(TypeError, match="decorate its methods"):

            @deviceguard.watch
            class Trainer:
                pass


class TestBrokenRules:
    def test_a_rule_that_cannot_be_loaded_is_left_out(self, monkeypatch, caplog):
        from deviceguard import session

        def failing(codes):
            if "DEV001" in codes:
                raise ImportError("gone")
            return rule_classes(codes)

        monkeypatch.undo()
        monkeypatch.setattr(session, "rule_classes", failing)
        with deviceguard.watch(select="DEV001,DEV002") as report:
            pass
        assert report.internal_errors == 1
        assert "could not load rule DEV001" in caplog.text


class TestStep:
    def test_a_loop_without_an_optimizer_can_count_its_steps(self):
        guard = deviceguard.watch()
        guard.step()
        with pytest.warns(deviceguard.DeviceGuardWarning), guard as report:
            for _ in range(3):
                ping()
                guard.step()
        (finding,) = report.findings
        assert (finding.count, finding.last_step) == (3, 2)


class TestImport:
    """``import deviceguard`` costs next to nothing."""

    CODE = "import sys, time; t = time.perf_counter(); import {}; d = time.perf_counter() - t; print(d, *sys.modules)"

    def imported(self, name):
        import subprocess

        done = subprocess.run(
            [sys.executable, "-c", self.CODE.format(name)], capture_output=True, text=True, check=True
        )
        seconds, *modules = done.stdout.split()
        return float(seconds), set(modules)

    @staticmethod
    def is_cheap(seconds, modules):
        heavy = {"torch", "numpy", "rich", "click", "wrapt", "executing", "asyncio", "typing_extensions"}
        return seconds < 0.05 and not modules & heavy

    def test_it_is_cheap(self):
        assert any(self.is_cheap(*self.imported("deviceguard")) for _ in range(3))

    def test_this_check_can_fail(self):
        assert not self.is_cheap(*self.imported("torch"))

    def test_what_the_settings_need_is_light_too(self):
        _, modules = self.imported(
            "deviceguard.guard, deviceguard.allowing, deviceguard.ignoring, deviceguard.settings"
        )
        assert "torch" not in modules
