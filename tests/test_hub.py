"""Who gets an event: nesting, threads, forked children, and what the guard's own work causes."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch import nn

import deviceguard
from deviceguard.events import ModuleCalled, RunEnded, RunStarted
from deviceguard.hub import HUB, Hub
from deviceguard.settings import Settings
from deviceguard.sources.source import Source
from tests.events import Ping, Recording, engine_of, pinging, rule_made_of


class Session:
    """As much of a session as the hub knows."""

    def __init__(self, *rules, thread=None, whole_process=False):
        self.policy = Recording()
        self.engine = engine_of(*(rules or (rule_made_of(pinging),)), policy=self.policy)
        self.report = self.engine.report
        self.settings = Settings()
        self.thread = threading.get_ident() if thread is None else thread
        self.whole_process = whole_process


@pytest.fixture
def hub(monkeypatch):
    """A hub without sources."""
    monkeypatch.setattr("deviceguard.sources.all.SOURCES", ())
    return Hub()


def counts(*sessions):
    return [sum(finding.count for finding in session.report.findings) for session in sessions]


class TestNesting:
    def test_without_a_session_events_go_nowhere(self, hub):
        hub.emit(Ping())

    def test_all_sessions_record_and_the_innermost_applies_its_policy(self, hub):
        outer, inner = Session(), Session()
        hub.enter(outer)
        hub.enter(inner)
        hub.emit(Ping())

        assert counts(outer, inner) == [1, 1]
        assert [len(outer.policy.applied), len(inner.policy.applied)] == [0, 1]

    def test_after_the_inner_one_has_left_the_outer_one_applies_again(self, hub):
        outer, inner = Session(), Session()
        hub.enter(outer)
        hub.enter(inner)
        hub.leave(inner)
        hub.emit(Ping())

        assert counts(outer, inner) == [1, 0]
        assert len(outer.policy.applied) == 1

    def test_leaving_twice_does_no_harm(self, hub):
        session = Session()
        hub.enter(session)
        hub.leave(session)
        hub.leave(session)

        assert hub.sessions == ()


class TestThreads:
    def test_an_event_goes_to_the_sessions_of_its_own_thread(self, hub):
        here, elsewhere = Session(), Session(thread=-1)
        hub.enter(here)
        hub.enter(elsewhere)
        hub.emit(Ping())

        assert counts(here, elsewhere) == [1, 0]

    def test_an_event_of_a_thread_without_a_session_goes_to_all(self, hub):
        one, other = Session(thread=-1), Session(thread=-2)
        hub.enter(one)
        hub.enter(other)
        hub.emit(Ping())

        assert counts(one, other) == [1, 1]

    def test_a_session_of_the_whole_process_hears_of_everything(self, hub):
        process, here = Session(thread=-1, whole_process=True), Session()
        hub.enter(process)
        hub.enter(here)
        hub.emit(Ping())

        assert counts(process, here) == [1, 1]
        assert [len(process.policy.applied), len(here.policy.applied)] == [0, 1]

    def test_a_model_run_in_a_worker_thread_is_seen(self):
        net = nn.Linear(4, 2)
        seen = []
        with deviceguard.watch(select="DEV001"):
            [session] = HUB.sessions
            handle = session.engine.handle
            session.engine.handle = lambda event, applying=True: (seen.append(type(event)), handle(event, applying))
            thread = threading.Thread(target=lambda: net(torch.ones(1, 4)))
            thread.start()
            thread.join()

        assert ModuleCalled in seen

    def test_two_guarded_threads_do_not_mix_their_findings(self):
        reports = {}
        both_open = threading.Barrier(2)

        def work(name, forgets):
            net = nn.Linear(4, 2).double()
            with deviceguard.watch() as reports[name]:
                both_open.wait(30)
                for _ in range(3):
                    net(torch.ones(1, 4, dtype=torch.float32 if forgets else torch.float64))

        def forgetting():
            with pytest.raises(RuntimeError):
                work("bad", True)

        threads = [threading.Thread(target=forgetting), threading.Thread(target=work, args=("good", False))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert reports["good"].findings == []


class TestOwnWork:
    def test_what_a_handler_causes_is_no_event(self, hub):
        session = Session(rule_made_of(lambda rule, event: hub.emit(Ping()) or pinging(rule, event)))
        hub.enter(session)
        hub.emit(Ping())

        assert counts(session) == [1]

    def test_what_the_policy_raises_leaves_the_hub_ready(self, hub):
        session = Session()
        session.policy.error = deviceguard.DeviceGuardError("text", None)
        hub.enter(session)
        with pytest.raises(deviceguard.DeviceGuardError):
            hub.emit(Ping(1))
        session.policy.error = None
        hub.emit(Ping(2))

        assert counts(session) == [2]

    def test_what_the_last_judging_calls_is_no_event(self, monkeypatch):
        seen = []

        def at_end(rule, event):
            if isinstance(event, RunEnded):
                nn.Linear(1, 1)(torch.ones(1, 1))
            else:
                seen.append(type(event))

        rule = rule_made_of(at_end, RunStarted, RunEnded, ModuleCalled)
        monkeypatch.setattr("deviceguard.session.rule_classes", lambda codes: [rule])
        with deviceguard.watch():
            pass

        assert seen == [RunStarted]


class TestSources:
    def test_a_source_that_cannot_be_installed_is_left_out(self, monkeypatch, caplog):
        removed = []

        class Broken(Source):
            provides = frozenset({Ping})

            def install(self):
                raise ZeroDivisionError("a bug in the source")

            def uninstall(self):
                removed.append(self)

        monkeypatch.setattr("deviceguard.sources.all.SOURCES", (Broken,))
        hub, session = Hub(), Session()
        with caplog.at_level(logging.WARNING, "deviceguard"):
            hub.enter(session)
        hub.emit(Ping())
        hub.leave(session)

        assert counts(session) == [1]
        assert session.report.internal_errors == 1
        assert "a bug in the source" in caplog.text
        assert removed

    def test_a_source_is_installed_while_somebody_wants_it(self, monkeypatch):
        log = []

        class Pings(Source):
            provides = frozenset({Ping})

            def install(self):
                log.append("install")

            def uninstall(self):
                log.append("uninstall")

        monkeypatch.setattr("deviceguard.sources.all.SOURCES", (Pings,))
        hub = Hub()
        first, second, other = Session(), Session(), Session(rule_made_of(pinging, RunEnded))
        hub.enter(other)
        assert log == []
        hub.enter(first)
        hub.enter(second)
        hub.leave(first)
        assert log == ["install"]
        hub.leave(second)
        hub.leave(other)

        assert log == ["install", "uninstall"]

    def test_a_source_bound_to_a_thread_is_installed_once_for_each(self, monkeypatch):
        installed = []

        class Mode(Source):
            provides = frozenset({Ping})
            per_thread = True

            def install(self):
                installed.append(threading.get_ident())

            def uninstall(self):
                pass

        monkeypatch.setattr("deviceguard.sources.all.SOURCES", (Mode,))
        hub = Hub()
        hub.enter(Session())
        hub.enter(Session())
        thread = threading.Thread(target=lambda: hub.enter(Session()))
        thread.start()
        thread.join()

        assert len(installed) == len(set(installed)) == 2

    def test_detail_is_asked_for_while_a_step_is_examined(self, monkeypatch):
        sources = []

        class Pings(Source):
            provides = frozenset({Ping})

            def install(self):
                sources.append(self)

            def uninstall(self):
                pass

        monkeypatch.setattr("deviceguard.sources.all.SOURCES", (Pings,))
        hub, session = Hub(), Session()
        hub.enter(session)
        [source] = sources
        assert source.detailed
        session.engine.steps.examined = False
        hub._attune()

        assert not source.detailed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
class TestForkedChildren:
    def test_a_child_sees_no_guard_and_leaves_the_judging_to_its_parent(self, tmp_path):
        done = script(
            tmp_path,
            """
            import json, os, sys
            import torch, deviceguard
            from deviceguard.hub import HUB

            net = torch.nn.Linear(4, 2)
            with deviceguard.watch(json="report.json"):
                child = os.fork()
                if child == 0:
                    print("sessions", len(HUB.sessions), flush=True)
                    try:
                        net.double()(torch.ones(1, 4))  # refused, in the child
                    except RuntimeError:
                        pass
                else:
                    os.waitpid(child, 0)
                    print("there is a report while the run goes on", os.path.exists("report.json"), flush=True)
            print("left", "child" if child == 0 else "parent", flush=True)
            """,
        )

        assert done.stdout.splitlines() == [
            "sessions 0",
            "left child",
            "there is a report while the run goes on False",
            "left parent",
        ]
        assert done.stderr == ""
        assert json.loads((tmp_path / "report.json").read_text())["findings"] == []

    def test_a_child_may_open_a_guard_of_its_own(self, tmp_path):
        done = script(
            tmp_path,
            """
            import os, sys
            import torch, deviceguard
            from deviceguard.hub import HUB

            save = torch.save
            with deviceguard.watch() as parents:
                child = os.fork()
                if child == 0:
                    with deviceguard.watch() as report:
                        print("sessions", len(HUB.sessions), flush=True)
                        torch.nn.Linear(4, 2)(torch.ones(1, 4))
                    print("restored", torch.save is save, flush=True)
                    os._exit(0)
                os.waitpid(child, 0)
            """,
        )

        assert done.stdout.splitlines() == ["sessions 1", "restored True"]
        assert done.stderr == ""

    def test_loader_workers_run_without_the_guard(self, tmp_path):
        done = script(
            tmp_path,
            """
            import torch, deviceguard
            from torch.utils.data import DataLoader, Dataset
            from deviceguard.hub import HUB

            class Numbers(Dataset):
                def __init__(self):
                    self.layer = torch.nn.Linear(1, 1)
                def __len__(self):
                    return 8
                def __getitem__(self, index):
                    with torch.no_grad():
                        self.layer(torch.ones(1))
                    return torch.tensor(float(index)), len(HUB.sessions)

            with deviceguard.watch() as report:
                for values, sessions in DataLoader(Numbers(), batch_size=4, num_workers=2):
                    print(values.tolist(), sessions.tolist(), flush=True)
            print(report.internal_errors)
            """,
        )

        assert done.stdout.splitlines() == [
            "[0.0, 1.0, 2.0, 3.0] [0, 0, 0, 0]",
            "[4.0, 5.0, 6.0, 7.0] [0, 0, 0, 0]",
            "0",
        ]


def script(folder: pathlib.Path, source: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(source))
    done = subprocess.run([sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done
