"""The one loop: what reaches which rule, what becomes of a finding, and where a rule's own failure ends."""

from __future__ import annotations

import logging
import threading

import pytest
from torch import nn

import deviceguard
from deviceguard.engine import MAX_FAILURES
from deviceguard.errors import DeviceGuardError, DeviceGuardWarning
from deviceguard.events import ModuleMade, OptimizerStepped, OptimizerStepping, RunEnded, StepEnded
from deviceguard.findings import Severity, Site
from deviceguard.rules.rule import Rule, on
from tests.events import Ping, Read, Recording, crashing, engine_of, pinging, rule_made_of


class _Optimizer:
    """Stands for a user's optimizer: the engine only looks at its groups."""

    def __init__(self):
        self.param_groups = []


class TestEvents:
    def test_a_rule_gets_the_events_it_named_and_no_others(self):
        seen = []
        engine = engine_of(rule_made_of(lambda rule, event: seen.append(event), Ping))
        ping = Ping()
        engine.handle(ping)
        engine.handle(Read())
        engine.handle(RunEnded())

        assert seen == [ping]

    def test_wanted_are_the_events_of_rules_ledger_and_steps(self):
        engine = engine_of(rule_made_of(pinging, Ping, Read))

        assert {Ping, Read, OptimizerStepping, OptimizerStepped} <= engine.wanted

    def test_rules_are_asked_in_order_of_their_codes(self):
        order = []
        rules = [
            rule_made_of(lambda rule, event: order.append(rule.code), Ping, code=code) for code in ("DEV001", "SYN001")
        ]
        engine_of(*rules).handle(Ping())

        assert order == ["DEV001", "SYN001"]

    def test_a_step_that_ended_is_told_before_the_event_that_ended_it(self):
        seen = []
        engine = engine_of(rule_made_of(lambda rule, event: seen.append(type(event)), StepEnded, OptimizerStepping))
        optimizer = _Optimizer()
        for _ in range(2):
            engine.handle(OptimizerStepping(optimizer))
            engine.handle(OptimizerStepped(optimizer))

        assert seen == [OptimizerStepping, StepEnded, OptimizerStepping]

    def test_a_handler_may_return_nothing(self):
        engine = engine_of(rule_made_of(lambda rule, event: None))
        engine.handle(Ping())

        assert engine.report.findings == []
        assert engine.report.internal_errors == 0

    def test_an_inherited_handler_is_called_once(self):
        seen = []

        class Base(Rule):
            code, name, severity, since = "DEV001", "made-by-hand", Severity.ERROR, "0.1.0"

            @on(Ping)
            def handle(self, event):
                seen.append(type(self))

        class Derived(Base):
            @on(Ping)
            def handle(self, event):
                super().handle(event)

        engine_of(Derived).handle(Ping())

        assert seen == [Derived]


class TestFindings:
    def test_the_same_finding_is_kept_once_and_counted(self):
        policy = Recording()
        engine = engine_of(rule_made_of(pinging), policy=policy)
        for line in (1, 2, 1, 1):
            engine.handle(Ping(line))

        assert [(f.site.line, f.count) for f in engine.report.findings] == [(1, 3), (2, 1)]
        assert [f.site.line for f in policy.applied] == [1, 2]

    def test_steps_widen_and_counts_add_up(self):
        engine = engine_of(rule_made_of(pinging))
        optimizer = _Optimizer()
        for _ in range(3):
            engine.handle(OptimizerStepping(optimizer))
            engine.handle(OptimizerStepped(optimizer))
            engine.handle(Ping())
        [finding] = engine.report.findings

        assert (finding.first_step, finding.last_step, finding.count) == (0, 2, 3)

    def test_outside_of_training_a_finding_has_no_step(self):
        engine = engine_of(rule_made_of(pinging))
        engine.handle(Ping())
        [finding] = engine.report.findings

        assert (finding.first_step, finding.last_step) == (None, None)

    def test_findings_that_differ_in_key_are_two(self):
        def both(rule, event):
            for key in ("a", "b"):
                yield rule.finding(key, "fix", site=Site("train.py", 1), key=key)

        engine = engine_of(rule_made_of(both))
        engine.handle(Ping())

        assert [f.message for f in engine.report.findings] == ["a", "b"]

    def test_site_is_the_users_line_where_the_rule_gave_none(self):
        engine = engine_of(rule_made_of(lambda rule, event: iter([rule.finding("m", "f")])))
        engine.handle(Ping())  # this line
        [finding] = engine.report.findings

        assert finding.site.file == __file__
        assert finding.site.source == "engine.handle(Ping())  # this line"

    def test_worst_come_first(self):
        engine = engine_of(
            rule_made_of(pinging, code="AAA001", severity=Severity.ADVICE),
            rule_made_of(pinging, code="BBB001", severity=Severity.ERROR),
        )
        engine.handle(Ping())

        assert [f.rule for f in engine.report.findings] == ["BBB001", "AAA001"]
        assert engine.report.worst is Severity.ERROR

    def test_a_session_that_only_records_applies_no_policy(self):
        policy = Recording()
        engine = engine_of(rule_made_of(pinging), policy=policy)
        engine.handle(Ping(), applying=False)

        assert policy.applied == []
        assert len(engine.report) == 1

    def test_what_the_policy_raises_comes_through(self):
        for kind in (DeviceGuardError, DeviceGuardWarning):
            error = kind("text", None) if kind is DeviceGuardError else kind("text")
            engine = engine_of(rule_made_of(pinging), policy=Recording(error))
            with pytest.raises(kind):
                engine.handle(Ping())
            assert engine.report.internal_errors == 0


class TestSilence:
    @pytest.mark.parametrize("selector", ["DEV001", "DEV", "dev001"])
    def test_allowed_region(self, selector):
        engine = engine_of(rule_made_of(pinging))
        with deviceguard.allow(selector):
            engine.handle(Ping())

        assert engine.report.findings == []

    def test_allowing_without_a_selector_allows_everything(self):
        engine = engine_of(rule_made_of(pinging))
        with deviceguard.allow():
            engine.handle(Ping())

        assert engine.report.findings == []

    def test_allowing_another_rule_changes_nothing(self):
        engine = engine_of(rule_made_of(pinging, code="DEV001"), rule_made_of(pinging, code="ZZZ001"))
        with deviceguard.allow("DEV001"):
            engine.handle(Ping())

        assert [f.rule for f in engine.report.findings] == ["ZZZ001"]

    def test_in_an_allowed_region_occurrences_do_not_reach_the_rule_and_state_does(self):
        seen = []
        engine = engine_of(rule_made_of(lambda rule, event: seen.append(type(event)), Ping, Read))
        with deviceguard.allow("DEV001"):
            engine.handle(Ping())
            engine.handle(Read())

        assert seen == [Ping]

    def test_allowing_is_for_this_thread_only(self):
        engine = engine_of(rule_made_of(pinging))
        with deviceguard.allow("DEV001"):
            thread = threading.Thread(target=engine.handle, args=(Ping(),))
            thread.start()
            thread.join()

        assert len(engine.report) == 1

    @pytest.mark.parametrize(
        ("comment", "kept"),
        [
            ("# deviceguard: ignore[DEV001]", 0),
            ("# deviceguard: ignore[DEV]", 0),
            ("# deviceguard: ignore", 0),
            ("#deviceguard:ignore[ SYN001 , dev001 ]", 0),
            ("# deviceguard: ignore[SYN001]", 1),
            ("# a comment", 1),
        ],
    )
    def test_comment_on_the_line(self, comment, kept):
        def found(rule, event):
            yield rule.finding("m", "f", site=Site("train.py", 1, source=f"x = y.item()  {comment}"))

        engine = engine_of(rule_made_of(found))
        engine.handle(Ping())

        assert len(engine.report) == kept


class TestOwnFailures:
    def test_a_crashing_rule_is_reported_once_with_its_traceback_and_switched_off(self, caplog):
        calls = []

        def handler(rule, event):
            calls.append(event)
            raise ZeroDivisionError("a bug in the rule")

        engine = engine_of(rule_made_of(handler, code="DEV001"), rule_made_of(pinging, code="ZZZ001"))
        with caplog.at_level(logging.WARNING, "deviceguard"):
            for line in range(5):
                engine.handle(Ping(line))
        [record] = caplog.records

        assert "DEV001" in record.getMessage()
        assert "Ping" in record.getMessage()
        assert "a bug in the rule" in caplog.text
        assert "test_engine.py" in caplog.text
        assert len(calls) == 1
        assert [f.rule for f in engine.report.findings] == ["ZZZ001"] * 5
        assert engine.report.internal_errors == 1

    def test_a_rule_that_crashes_after_a_finding_keeps_it(self):
        def handler(rule, event):
            yield from pinging(rule, event)
            raise ZeroDivisionError

        engine = engine_of(rule_made_of(handler))
        engine.handle(Ping())

        assert len(engine.report) == 1
        assert engine.report.internal_errors == 1

    def test_after_a_few_failures_the_guard_is_off(self, caplog):
        def unfinished(rule, event):
            yield rule.finding("m", "f", site="no site")

        engine = engine_of(rule_made_of(unfinished))
        with caplog.at_level(logging.WARNING, "deviceguard"):
            for _ in range(MAX_FAILURES + 3):
                engine.handle(Ping())

        assert engine.is_off
        assert engine.report.internal_errors == MAX_FAILURES
        assert len(caplog.records) == 2
        assert "switches itself off" in caplog.records[-1].getMessage()

    def test_several_crashing_rules_switch_the_guard_off(self):
        rules = [rule_made_of(crashing, code=f"DEV{number:03}") for number in range(MAX_FAILURES)]
        engine = engine_of(*rules, rule_made_of(pinging, code="ZZZ001"))
        engine.handle(Ping())
        engine.handle(Ping(2))

        assert engine.is_off
        assert [f.site.line for f in engine.report.findings] == [1]

    def test_a_failing_ledger_does_not_stop_the_rules(self, monkeypatch):
        engine = engine_of(rule_made_of(pinging))
        monkeypatch.setattr(engine.ledger, "handle", crashing)
        engine.handle(Ping())

        assert len(engine.report) == 1
        assert engine.report.internal_errors == 1

    def test_a_bug_in_the_policy_does_not_reach_the_run(self):
        engine = engine_of(rule_made_of(pinging), policy=Recording(AttributeError("a bug in the policy")))
        engine.handle(Ping())

        assert engine.report.internal_errors == 1

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_interrupts_come_through(self, error):
        def handler(rule, event):
            raise error

        engine = engine_of(rule_made_of(handler))
        with pytest.raises(error):
            engine.handle(Ping())

    def test_a_rule_that_cannot_be_made_is_left_out(self, caplog):
        class Broken(Rule):
            code, name, severity, since = "DEV001", "made-by-hand", Severity.ERROR, "0.1.0"

            def __init__(self, context):
                raise ZeroDivisionError("a bug in the constructor")

            @on(Ping)
            def handle(self, event):
                """Never gets here."""

        engine = engine_of(Broken, rule_made_of(pinging, code="ZZZ001"))
        engine.handle(Ping())

        assert [f.rule for f in engine.report.findings] == ["ZZZ001"]
        assert engine.report.internal_errors == 1


class TestNotes:
    """What only the ledger remembers takes a short way."""

    def test_the_ledger_takes_note(self):
        engine, net = engine_of(), nn.ReLU()
        engine.note(ModuleMade, (net, Site("train.py", 7)))

        assert engine.ledger.module(net).made_at == Site("train.py", 7)

    def test_a_rule_that_asks_for_such_an_event_gets_it(self):
        seen = []
        engine, net = engine_of(rule_made_of(lambda rule, event: seen.append(event), ModuleMade)), nn.ReLU()
        engine.note(ModuleMade, (net, Site("train.py", 7)))

        assert [event.module for event in seen] == [net]
        assert engine.ledger.module(net).made_at == Site("train.py", 7)

    def test_a_failure_is_counted_and_ends_with_the_guard_off(self, caplog):
        engine = engine_of()
        for _ in range(8):
            engine.note(ModuleMade, (1, None))

        assert engine.is_off
        assert engine.report.internal_errors == 5
        assert "taking note of ModuleMade" in caplog.text


def test_events_of_several_threads_are_handled_one_at_a_time():
    inside, most = [0], [0]

    def handler(rule, event):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.001)
        inside[0] -= 1

    engine = engine_of(rule_made_of(handler))
    threads = [threading.Thread(target=lambda: [engine.handle(Ping()) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1]
