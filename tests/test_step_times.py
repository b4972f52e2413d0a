"""Where the time of a step goes, with a clock of the tests' own."""

from __future__ import annotations

import torch

from deviceguard import step_times
from deviceguard.events import (
    BatchFetched,
    Event,
    HostRead,
    LoaderFacts,
    OptimizerStepped,
    OptimizerStepping,
    StepEnded,
    Synchronized,
    Uploaded,
)
from deviceguard.reports.json_report import as_dict
from deviceguard.reports.report import Report
from deviceguard.step_times import StepTimes
from tests.rules.loops import training
from tests.scripts import run_script

HOST = torch.zeros(1)


class Loop:
    """A training loop whose events come when the test says."""

    def __init__(self, monkeypatch, warmup: int = 0, device: str = "meta") -> None:
        self.now = 100.0
        monkeypatch.setattr(step_times, "perf_counter", lambda: self.now)
        monkeypatch.setattr(step_times, "is_accelerator", lambda found: found.type == "meta")
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=device))], lr=0.1)
        self.times = StepTimes(warmup)
        self.index = 0

    def happens(self, event: Event, after: float = 0.0) -> None:
        self.now += after
        self.times.handle(event, None)

    def ends(self, after: float = 0.0) -> None:
        self.now += after
        self.times.handle(OptimizerStepping(self.optimizer), StepEnded(self.index, training=True))
        self.index += 1

    def step(self, rest: float = 0.5) -> None:
        """One step: 1 s waiting for data, 0.5 s upload, 2 s blocked, 1 s in the optimizer, and the rest."""
        self.happens(OptimizerStepped(self.optimizer), after=1.0)
        self.happens(fetched(1.0), after=1.0)
        self.happens(Uploaded(".to()", "move", HOST, HOST, 4, seconds=0.5), after=0.5)
        self.happens(HostRead(".item()", "scalar", HOST, explicit=True, seconds=1.5), after=1.5)
        self.happens(Synchronized("torch.cuda.synchronize()", "device", seconds=0.5), after=0.5)
        self.ends(after=rest)


def fetched(seconds: float) -> BatchFetched:
    facts = LoaderFacts(number=0, workers=0, pins=False, batch_size=1, dataset="Data", forks=True)
    return BatchFetched(None, facts, HOST, seconds)


def test_parts_make_up_the_step(monkeypatch):
    loop = Loop(monkeypatch)
    loop.ends()
    for _ in range(3):
        loop.step()

    time = loop.times.summary()

    assert time is not None
    assert (time.steps, time.estimated, time.device) == (3, False, None)
    assert (time.mean.data, time.mean.upload, time.mean.blocked) == (1.0, 0.5, 2.0)
    assert (time.mean.optimizer, time.mean.host) == (1.0, 0.5)
    assert time.mean.total == 5.0


def test_a_wait_inside_another_part_counts_once(monkeypatch):
    """A data set that uploads, an optimizer that reads."""
    loop = Loop(monkeypatch)
    loop.ends()
    loop.happens(HostRead(".item()", "scalar", HOST, explicit=True, seconds=0.25), after=0.5)
    loop.happens(OptimizerStepped(loop.optimizer), after=0.5)
    loop.happens(Uploaded(".to()", "move", HOST, HOST, 4, seconds=0.5), after=1.0)
    loop.happens(fetched(1.0))
    loop.ends()

    mean = loop.times.summary().mean

    assert (mean.optimizer, mean.blocked) == (0.75, 0.25)
    assert (mean.data, mean.upload, mean.host) == (0.5, 0.5, 0.0)


def test_warm_up_and_a_step_with_an_evaluation_in_it_are_left_out(monkeypatch):
    loop = Loop(monkeypatch, warmup=2)
    loop.ends()
    for rest in (9.0, 0.5, 0.5, 600.0, 0.5):
        loop.step(rest)

    time = loop.times.summary()

    assert (time.steps, time.mean.total) == (3, 5.0)


def test_a_model_on_the_host_has_no_split(monkeypatch):
    loop = Loop(monkeypatch, device="cpu")
    loop.ends()
    loop.happens(OptimizerStepped(loop.optimizer), after=1.0)
    loop.ends(after=1.0)

    assert loop.times.summary() is None


def test_simulated_waits_are_estimates_and_say_so():
    report = run_script(training("total += loss.item()"))
    time = report.to_dict()["time"]

    assert time["estimated"] is True
    assert time["parts"]["blocked"] > 0
    assert [(site["rule"], site["estimated"]) for site in time["sites"]] == [("SYN001", True)]
    assert time["sites"][0]["source"] == "total += loss.item()"


def test_costliest_line_comes_first():
    report = run_script(training("total += loss.item()\nprint(output)"))

    assert [finding.rule for finding in report.of("SYN")] == ["SYN002", "SYN001"]


def test_no_accelerator_no_split():
    assert as_dict(Report())["time"] is None
    assert run_script("import torch\n", simulate=None).time is None
