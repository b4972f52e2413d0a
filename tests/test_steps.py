"""Steps are found in the loops people write, with nobody declaring them."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

import deviceguard
from deviceguard.events import LossComputed, StepEnded
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
