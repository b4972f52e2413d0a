"""Steps are found in the loops people write, with nobody declaring them."""

from __future__ import annotations

import copy
import itertools
import threading

import pytest
import torch
from torch import nn

import deviceguard
from deviceguard.events import (
    GradientsCleared,
    LossComputed,
    ModuleCalled,
    ModuleConverted,
    OptimizerStepped,
    OptimizerStepping,
    StepEnded,
)
from deviceguard.findings import Site
from deviceguard.hub import HUB
from deviceguard.steps import Steps
from tests.events import rule_made_of


class Watched:
    """A run under the guard, with the steps that ended in it."""

    def __init__(self):
        self.ended = []
        self.guard = None

    @property
    def steps(self) -> Steps:
        return HUB.sessions[-1].engine.steps

    @property
    def indices(self):
        return [index for index, training in self.ended]


@pytest.fixture
def run(monkeypatch):
    """Opens a guard whose only rule takes note of the steps."""
    watched = Watched()
    rule = rule_made_of(lambda rule, event: watched.ended.append((event.index, event.training)), StepEnded)
    monkeypatch.setattr("deviceguard.session.rule_classes", lambda codes: [rule])
    watched.guard = deviceguard.watch(full_steps=4, sample_period=10)
    with watched.guard as report:
        yield watched
    assert report.internal_errors == 0


def net_and_optimizer(cls=torch.optim.SGD, **options):
    net = nn.Linear(4, 2)
    return net, cls(net.parameters(), **{"lr": 0.1, **options})


def loss_of(net):
    return net(torch.randn(3, 4)).pow(2).mean()


def train(net, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()


class TestTraining:
    def test_plain_loop(self, run):
        train(*net_and_optimizer(), steps=5)

        assert run.ended == [(0, True), (1, True), (2, True), (3, True)]
        assert (run.steps.index, run.steps.training) == (4, True)

    def test_micro_batches_of_gradient_accumulation_are_one_step(self, run):
        net, optimizer = net_and_optimizer()
        for batch in range(12):
            loss_of(net).backward()
            if batch % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

        assert run.steps.index == 2

    def test_two_optimizers_of_a_gan_share_a_step(self, run):
        generator, of_generator = net_and_optimizer(torch.optim.Adam)
        critic, of_critic = net_and_optimizer(torch.optim.Adam)
        for _ in range(4):
            train(critic, of_critic, 1)
            train(generator, of_generator, 1)

        assert run.steps.index == 3

    def test_several_critic_steps_for_each_generator_step(self, run):
        generator, of_generator = net_and_optimizer()
        critic, of_critic = net_and_optimizer()
        for _ in range(2):
            train(critic, of_critic, 3)
            train(generator, of_generator, 1)

        assert run.steps.index == 5

    def test_an_optimizer_for_each_layer(self, run):
        layers = [net_and_optimizer() for _ in range(5)]
        for _ in range(3):
            for net, optimizer in layers:
                train(net, optimizer, 1)

        assert run.steps.index == 2

    def test_a_closure_that_runs_the_model_again_and_again(self, run):
        net, optimizer = net_and_optimizer(torch.optim.LBFGS, max_iter=6)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(net)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

        assert run.ended == [(0, True), (1, True)]

    def test_steps_that_the_grad_scaler_skips(self, run):
        net, optimizer = net_and_optimizer()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for batch in range(6):
            optimizer.zero_grad()
            scaler.scale(loss_of(net)).backward()
            if batch % 3 == 1:
                net.weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()

        assert run.steps.index == 3

    def test_an_optimizer_that_wraps_another(self, run):
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner = inner
                super().__init__(inner.param_groups, {})

            def step(self, closure=None):
                self.inner.step(closure)

        net, inner = net_and_optimizer()
        train(net, Lookahead(inner), 4)

        assert run.steps.index == 3

    def test_a_new_optimizer_goes_on_counting(self, run):
        net, optimizer = net_and_optimizer()
        train(net, optimizer, 3)
        optimizer = torch.optim.Adam(net.parameters())
        train(net, optimizer, 3)

        assert run.steps.index == 4

    def test_evaluation_between_epochs_is_no_step(self, run):
        net, optimizer = net_and_optimizer()
        for _ in range(2):
            train(net, optimizer, 3)
            with torch.no_grad():
                for _ in range(10):
                    loss_of(net)

        assert run.steps.index == 5

    def test_evaluation_before_training_does_not_shift_the_count(self, run):
        net, optimizer = net_and_optimizer()
        for _ in range(6):
            loss_of(net)
        train(net, optimizer, 3)

        assert (run.steps.index, run.steps.training) == (2, True)
        assert run.ended[-2:] == [(0, True), (1, True)]

    def test_an_optimizer_whose_step_raises(self, run):
        class Failing(torch.optim.SGD):
            def step(self, closure=None):
                raise ValueError

        net = nn.Linear(4, 2)
        optimizer = Failing(net.parameters(), lr=0.1)
        for _ in range(3):
            with pytest.raises(ValueError):
                train(net, optimizer, 1)
        train(*net_and_optimizer(), steps=3)

        assert run.steps.index == 2

    def test_steps_taken_in_another_thread(self, run):
        thread = threading.Thread(target=train, args=(*net_and_optimizer(), 4))
        thread.start()
        thread.join()

        assert run.steps.index == 3

    def test_loops_without_an_optimizer_say_it_themselves(self, run):
        net = nn.Linear(4, 2)
        for _ in range(3):
            loss_of(net).backward()
            with torch.no_grad():
                net.weight -= 0.1 * net.weight.grad
            run.guard.step()

        assert (run.steps.index, run.steps.training) == (3, True)
        assert [entry for entry in run.ended if entry[1]] == [(0, True), (1, True), (2, True)]


class TestInference:
    def test_each_call_of_the_model_is_a_step(self, run):
        net = nn.Linear(4, 2).eval()
        for _ in range(4):
            loss_of(net)

        assert run.ended == [(0, False), (1, False), (2, False)]
        assert not run.steps.training

    def test_models_that_run_in_turn_share_a_step(self, run):
        encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 2)
        for _ in range(3):
            decoder(encoder(torch.randn(1, 4)))

        assert run.steps.index == 2

    def test_layers_inside_the_model_are_no_steps(self, run):
        net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)])
        loss_of(net)

        assert run.ended == []

    def test_a_model_that_is_gone_is_replaced_by_the_next(self, run):
        for _ in range(3):
            net = nn.Linear(4, 2)
            loss_of(net)
            loss_of(net)
            del net

        assert run.steps.index >= 3


class TestExamination:
    def examined(self, run, steps, each=lambda step: None):
        net, optimizer = net_and_optimizer()
        seen = []
        for step in range(steps):
            each(step)
            loss_of(net).backward()
            optimizer.step()
            if run.steps.examined:
                seen.append(run.steps.index)
        return seen

    def test_the_first_steps_and_samples_later(self, run):
        seen = self.examined(run, 42)

        assert seen[:4] == [0, 1, 2, 3]
        assert {10, 20, 30, 40} <= set(seen)
        assert len(seen) <= 4 + 2 * 4

    def test_a_few_more_after_a_change(self, run):
        seen = self.examined(run, 10, lambda step: nn.Linear(2, 2).double() if step == 6 else None)

        assert seen == [0, 1, 2, 3, 6, 7]

    @pytest.mark.parametrize(
        "change",
        [
            lambda net, optimizer: net.double(),
            lambda net, optimizer: net.load_state_dict(copy.deepcopy(net.state_dict())),
            lambda net, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
            lambda net, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
            lambda net, optimizer: torch.optim.SGD(net.parameters(), lr=0.1),
        ],
        ids=["conversion", "load", "group", "optimizer state", "optimizer"],
    )
    def test_each_kind_of_change(self, run, change):
        net, optimizer = net_and_optimizer()
        train(net, optimizer, 8)
        assert not run.steps.examined
        change(net, optimizer)

        assert run.steps.examined

    def test_with_all_rules_on_most_steps_are_not_examined(self):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(full_steps=4, sample_period=50):
            steps, seen = HUB.sessions[-1].engine.steps, []
            for _ in range(30):
                train(net, optimizer, 1)
                seen.append(steps.examined)

        assert sum(seen) < 10

    def test_events_that_change_nothing_ask_for_no_examination(self):
        steps = Steps(full=0, period=10)
        steps.index, steps.examined = 5, False
        steps.handle(LossComputed("mse_loss", {}, None))

        assert not steps.examined

    def test_steps_hold_no_optimizer_and_no_model(self, run):
        import gc
        import weakref

        net, optimizer = net_and_optimizer()
        train(net, optimizer, 2)
        gone = [weakref.ref(net), weakref.ref(optimizer)]
        del net, optimizer
        gc.collect()

        assert [reference() for reference in gone] == [None, None]


class Sleeper:
    """A guard that sleeps after six steps and wakes each ten, and what its only rule hears."""

    OPTIONS = {"full_steps": 2, "capture_steps": 6, "sample_period": 10}

    def __init__(self, monkeypatch):
        self.heard = []
        rule = rule_made_of(
            lambda rule, event: self.heard.append((self.steps.number, type(event).__name__)),
            ModuleCalled,
            OptimizerStepping,
            OptimizerStepped,
            GradientsCleared,
            ModuleConverted,
        )
        monkeypatch.setattr("deviceguard.session.rule_classes", lambda codes: [rule])

    @property
    def steps(self) -> Steps:
        return HUB.sessions[-1].engine.steps

    def numbers(self, kind="OptimizerStepped"):
        return [number for number, name in self.heard if name == kind]


@pytest.fixture
def sleeper(monkeypatch):
    return Sleeper(monkeypatch)


class TestSleep:
    def test_the_first_steps_then_four_in_a_period_then_fewer(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS) as report:
            train(net, optimizer, 200)

        told = sleeper.numbers()
        assert told[:15] == [0, 1, 2, 3, 4, 5, 6, 17, 18, 19, 20, 41, 42, 43, 44]
        gaps = [later - earlier for earlier, later in itertools.pairwise(told) if later - earlier > 1]
        assert gaps == [11, 21, 41, 81]
        assert (report.steps, report.steps_watched, report.internal_errors) == (200, len(told), 0)

    def test_what_is_told_are_whole_steps(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            train(net, optimizer, 60)

        kinds = [name for _, name in sleeper.heard]
        one = ["GradientsCleared", "ModuleCalled", "OptimizerStepping", "OptimizerStepped"]
        assert kinds == one * (len(kinds) // 4)

    def test_micro_batches_of_gradient_accumulation_stay_together(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            for _ in range(50):
                for _ in range(3):
                    loss_of(net).backward()
                optimizer.step()
                optimizer.zero_grad()

        kinds = [name for _, name in sleeper.heard]
        one = ["ModuleCalled"] * 3 + ["OptimizerStepping", "OptimizerStepped", "GradientsCleared"]
        # here the loop begins anew with zero_grad, just after the step
        assert kinds == one[:-1] + ["GradientsCleared", *one[:-1]] * (len(kinds) // 6)

    def test_two_optimizers_stay_together(self, sleeper):
        generator, of_generator = net_and_optimizer()
        critic, of_critic = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            for _ in range(60):
                train(critic, of_critic, 1)
                train(generator, of_generator, 1)

        told = sleeper.numbers()
        assert len(told) > 12
        assert [told.count(number) for number in dict.fromkeys(told)] == [2] * (len(told) // 2)

    def test_a_closure_stays_with_its_step(self, sleeper):
        net, optimizer = net_and_optimizer(torch.optim.LBFGS, max_iter=2, tolerance_grad=0, tolerance_change=0)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(net)
            loss.backward()
            return loss

        with deviceguard.watch(**sleeper.OPTIONS) as report:
            for _ in range(60):
                optimizer.step(closure)

        kinds = [name for _, name in sleeper.heard if name.startswith("Optimizer")]
        assert kinds == ["OptimizerStepping", "OptimizerStepped"] * (len(kinds) // 2)
        assert sleeper.heard[0][1] == "OptimizerStepping"
        assert report.steps_watched < 30

    def test_a_change_wakes(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            train(net, optimizer, 9)
            assert not sleeper.steps.awake
            net.double().float()
            train(net, optimizer, 3)

        assert sleeper.numbers("ModuleConverted") == [8, 8]
        assert sleeper.numbers() == [0, 1, 2, 3, 4, 5, 6, 9, 10]

    def test_a_model_that_is_called_for_the_first_time_in_this_mode_wakes(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            train(net, optimizer, 9)
            net.eval()
            loss_of(net)
            net.train()
            called = sleeper.numbers("ModuleCalled")[-1]
            train(net, optimizer, 3)

        assert called == 8

    def test_a_long_evaluation_is_not_heard_to_its_end(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            train(net, optimizer, 9)
            net.eval()
            for _ in range(100):
                loss_of(net)

        assert 10 < sleeper.numbers("ModuleCalled").count(8) < 30

    def test_a_program_that_makes_a_model_each_step_does_not_keep_the_guard_awake(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS) as report:
            for _ in range(300):
                loss_of(nn.Linear(4, 2))
                train(net, optimizer, 1)

        assert report.steps_watched < 150

    @pytest.mark.parametrize(
        ("guard", "options"),
        [
            (deviceguard.watch, {"sample_period": 1}),
            (deviceguard.watch, {"device_to_host": "log"}),
            (deviceguard.strict, {}),
            (deviceguard.migrate, {}),
        ],
        ids=["period 1", "transfers", "strict", "migrate"],
    )
    def test_where_each_step_counts_it_never_sleeps(self, sleeper, guard, options):
        net, optimizer = net_and_optimizer()
        settings = {**sleeper.OPTIONS, **options}
        with guard(**settings) as report:
            train(net, optimizer, 30)

        assert (report.steps, report.steps_watched) == (30, 30)

    def test_findings_give_the_step_of_the_run(self, monkeypatch):
        site = Site("train.py", 1, source="x = 1")
        rule = rule_made_of(lambda rule, event: [rule.finding("it happened", "do not", site=site)], OptimizerStepped)
        monkeypatch.setattr("deviceguard.session.rule_classes", lambda codes: [rule])
        net, optimizer = net_and_optimizer()
        with pytest.warns(deviceguard.DeviceGuardWarning), deviceguard.watch(**Sleeper.OPTIONS) as report:
            train(net, optimizer, 19)

        [finding] = report.findings
        assert (finding.count, finding.first_step, finding.last_step) == (9, 0, 18)

    def test_what_is_found_while_it_sleeps_has_the_step_of_the_run(self, monkeypatch):
        site = Site("train.py", 1, source="x = 1")
        rule = rule_made_of(lambda rule, event: [rule.finding("it happened", "do not", site=site)], ModuleConverted)
        monkeypatch.setattr("deviceguard.session.rule_classes", lambda codes: [rule])
        net, optimizer = net_and_optimizer()
        with pytest.warns(deviceguard.DeviceGuardWarning), deviceguard.watch(**Sleeper.OPTIONS) as report:
            train(net, optimizer, 12)
            net.double()

        assert report.findings[0].first_step == 11

    def test_the_number_of_a_step_long_ago(self):
        steps = Steps(full=1, period=2, captured=1)
        optimizer = net_and_optimizer()[1]
        numbers = {}
        for _ in range(5000):
            steps.handle(GradientsCleared(optimizer, True))
            if steps.awake:
                numbers[steps.index] = steps.number
            steps.handle(OptimizerStepping(optimizer))
            steps.handle(OptimizerStepped(optimizer))

        late = list(numbers)[-100:]
        assert [steps.number_of(index) for index in late] == [numbers[index] for index in late]

    def test_a_region_can_keep_it_awake(self, sleeper):
        net, optimizer = net_and_optimizer()
        with deviceguard.watch(**sleeper.OPTIONS):
            train(net, optimizer, 9)
            with deviceguard.transfers(device_to_host="log"):
                train(net, optimizer, 3)
            train(net, optimizer, 2)

        assert {9, 10, 11} <= set(sleeper.numbers()) < {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12}
