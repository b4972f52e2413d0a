"""A failure anywhere in the guard is the guard's own affair: the run ends with the very bits it ends with unguarded."""

from __future__ import annotations

import functools
import inspect
import logging
import random
import sys

import pytest
import torch
from torch import nn

import deviceguard
from deviceguard import events
from deviceguard.engine import MAX_FAILURES
from deviceguard.hub import HUB
from deviceguard.rules.registry import rule_classes
from deviceguard.settings import Settings
from deviceguard.sources.all import SOURCES

EVENTS = [
    kind
    for kind in vars(events).values()
    if inspect.isclass(kind) and issubclass(kind, events.Event) and kind is not events.Event
]
FAULTS = (ZeroDivisionError, MemoryError, RecursionError)
RULES = rule_classes(sorted(Settings().codes()))


def fault(kind):
    def fail(*args, **kwargs):
        raise kind("injected")

    return fail


def break_rule(rule, error, monkeypatch):
    """Let each handler of a rule fail, and stay a handler."""
    for name in {name for names in rule.handlers().values() for name in names}:
        monkeypatch.setattr(rule, name, functools.wraps(getattr(rule, name))(fault(error)))


def train(steps=3):
    """A run that touches most sources: its losses, parameters and the random streams it leaves behind."""
    torch.manual_seed(0)
    random.seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2)).to(torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = torch.utils.data.TensorDataset(torch.randn(2 * steps, 4), torch.randint(0, 2, (2 * steps,)))
    losses = []
    for inputs, labels in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    copy = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    copy.load_state_dict(net.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    with torch.no_grad():
        outputs = copy.eval()(torch.ones(2, 4)).cpu().numpy().tobytes()
    weights = [parameter.detach().numpy().tobytes() for parameter in net.parameters()]
    return losses, weights, outputs, torch.rand(1).item(), random.random()


@functools.cache
def unguarded():
    """The same without a guard; not when the module is imported, where it would come before torch_xla does."""
    return train()


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1, "deviceguard")


@pytest.mark.filterwarnings("ignore::deviceguard.errors.DeviceGuardWarning")
class TestSeams:
    """Each seam fails; the result is that of the unguarded run."""

    @pytest.mark.production
    @pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
    def test_an_event_that_cannot_be_made(self, kind, monkeypatch):
        monkeypatch.setattr(kind, "__init__", fault(FAULTS[EVENTS.index(kind) % 3]))
        with deviceguard.simulate("cuda"), deviceguard.watch():
            result = train()

        assert result == unguarded()

    @pytest.mark.parametrize("error", FAULTS)
    def test_every_rule_at_every_event(self, error, monkeypatch):
        for rule in RULES:
            break_rule(rule, error, monkeypatch)
        monkeypatch.setattr("deviceguard.engine.MAX_FAILURES", 10_000)
        with deviceguard.simulate("cuda"), deviceguard.watch() as report:
            result = train()

        assert result == unguarded()
        assert report.internal_errors > MAX_FAILURES

    @pytest.mark.production
    @pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
    @pytest.mark.parametrize("method", ["install", "uninstall"])
    def test_a_source_that_cannot_be_installed_or_removed(self, source, method, monkeypatch):
        original = getattr(source, method)

        def then_fail(self):
            original(self)
            raise MemoryError("injected")

        monkeypatch.setattr(source, method, then_fail)
        with deviceguard.simulate("cuda"), deviceguard.watch():
            result = train()

        assert result == unguarded()

    @pytest.mark.parametrize("error", FAULTS)
    @pytest.mark.parametrize(
        "seam",
        [
            "deviceguard.policies.warn.WarnPolicy.apply",
            "deviceguard.engine.user_site",
            "deviceguard.engine.is_ignored",
            "deviceguard.steps.Steps.handle",
            "deviceguard.step_times.StepTimes.handle",
            "deviceguard.ledger.ledger.Ledger.handle",
            "deviceguard.reports.report.Report.add",
            "deviceguard.engine.Engine._handle",
            "deviceguard.hub.Hub._targets",
            "deviceguard.hub.Hub._attune",
        ],
    )
    def test_the_chain(self, seam, error, monkeypatch):
        with deviceguard.simulate("cuda"), deviceguard.watch():
            with monkeypatch.context() as patch:
                patch.setattr(seam, fault(error))
                result = train()

        assert result == unguarded()


class TestReport:
    """What cannot be written is said, and the run goes on."""

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), ValueError()])
    @pytest.mark.filterwarnings("ignore::deviceguard.errors.DeviceGuardWarning")
    def test_a_report_that_cannot_be_written(self, error, monkeypatch, tmp_path):
        def fail(*args):
            raise error

        monkeypatch.setattr("deviceguard.reports.json_report.replace_text", fail)
        with deviceguard.watch(json=tmp_path / "report.json"):
            result = train()

        assert result == unguarded()

    def test_stderr_that_is_closed(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", None)
        deviceguard.start()
        result = train()
        deviceguard.stop()

        assert result == unguarded()


class TestGivingUp:
    """After a few failures the guard removes itself."""

    def test_nothing_stays_installed(self, monkeypatch):
        for number, rule in enumerate(RULES):
            break_rule(rule, FAULTS[number % 3], monkeypatch)
        with deviceguard.simulate("cuda"), deviceguard.watch() as report:
            result = train()

            assert HUB._installed == {}
        assert result == unguarded()
        assert report.internal_errors >= MAX_FAILURES

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_what_ends_the_run_passes(self, error, monkeypatch):
        [rule] = rule_classes(["OPT001"])
        break_rule(rule, error, monkeypatch)
        with pytest.raises(error), deviceguard.simulate("cuda"), deviceguard.watch():
            train()

        assert HUB.sessions == ()
