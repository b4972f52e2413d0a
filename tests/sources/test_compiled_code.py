"""Compiled code is compiled as often with the guard as without it, also when the guard falls asleep and wakes."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.overrides import _get_current_function_mode_stack

import deviceguard
from deviceguard.hub import HUB

SLEEPY = {"full_steps": 2, "capture_steps": 4, "sample_period": 6}


def train(step, steps=30):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(steps):
        optimizer.zero_grad()
        step(net, torch.ones(3, 4), number).backward()
        optimizer.step()


def compiled_times(guard, at=0):
    """How often a loss is compiled when its first call comes at a step."""
    torch._dynamo.reset()
    counter = CompileCounter()

    def loss(net, x):
        return net(x).square().mean()

    compiled = torch.compile(loss, backend=counter)
    with guard:
        train(lambda net, x, number: (compiled if number >= at else loss)(net, x))
    return counter.frame_count


@pytest.mark.parametrize("at", [0, 5], ids=["from the start", "while the guard sleeps"])
def test_no_more_compilations(at):
    assert compiled_times(deviceguard.watch(**SLEEPY), at) == compiled_times(contextlib.nullcontext(), at) == 1


def test_a_compiled_module():
    counter = CompileCounter()
    with deviceguard.watch(**SLEEPY) as report:
        net = torch.compile(nn.Linear(4, 2), backend=counter)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            net(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()

    assert counter.frame_count == 1
    assert report.steps_watched < 20


def test_without_compiled_code_the_mode_leaves_the_stack_between_samples():
    sizes = []

    def loss(net, x, number):
        sizes.append((HUB.sessions[-1].engine.steps.awake, len(_get_current_function_mode_stack())))
        return net(x).square().mean()

    with deviceguard.watch(**SLEEPY):
        train(loss)

    assert set(sizes) == {(True, 1), (False, 0)}
