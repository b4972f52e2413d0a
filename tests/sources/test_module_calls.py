"""Calls of modules: who is root of whom, also where the guard begins to listen in the middle."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from deviceguard.events import ModuleCalled, ModuleMet, ModuleReturned
from deviceguard.sources.modules import ModuleCalls

ALL = frozenset({ModuleCalled, ModuleMet, ModuleReturned})
QUIET = frozenset({ModuleMet})


class Inner(nn.Module):
    def forward(self, x):
        return x + 1


class Outer(nn.Module):
    """Calls a module, does something in its forward, and calls another."""

    def __init__(self, between=lambda: None):
        super().__init__()
        self.first, self.second, self.between = Inner(), Inner(), between

    def forward(self, x, scale=1):
        x = self.first(x)
        self.between()
        return self.second(x) * scale


@pytest.fixture
def heard():
    return []


@pytest.fixture
def source(heard):
    source = ModuleCalls(heard.append)
    source.wanted = ALL
    source.install()
    yield source
    source.uninstall()


def calls(heard):
    return [(event.module, event.is_root, event.parent) for event in heard if type(event) is ModuleCalled]


def met(heard):
    return [event.module for event in heard if type(event) is ModuleMet]


def test_root_and_calls_inside(source, heard):
    net = Outer()
    net(torch.ones(2), scale=3)

    assert calls(heard) == [(net, True, None), (net.first, False, net), (net.second, False, net)]
    assert heard[1].kwargs == {"scale": 3}


def test_without_detail_only_the_root(source, heard):
    source.detailed = False
    net = Outer()
    net(torch.ones(2))

    assert [type(event) for event in heard] == [ModuleMet, ModuleCalled, ModuleReturned]


def test_a_root_is_met_once_in_each_mode(source, heard):
    net = Outer()
    for mode in (True, True, False, False, True):
        net.train(mode)
        net(torch.ones(2))

    assert met(heard) == [net, net]


def test_while_nobody_wants_calls_new_roots_are_told(source, heard):
    net, other = Outer(), Outer()
    net(torch.ones(2))
    heard.clear()
    source.wanted = QUIET
    net(torch.ones(2))
    other(torch.ones(2))
    net.eval()
    net(torch.ones(2))

    assert [(type(event), event.module) for event in heard] == [(ModuleMet, other), (ModuleMet, net)]


def test_a_module_first_called_inside_another_is_no_root(source, heard):
    net = Outer()
    net(torch.ones(2))
    heard.clear()
    source.wanted = QUIET
    net.second = Inner()
    net(torch.ones(2))

    assert heard == []


def test_who_wakes_at_a_new_root_hears_that_call(source, heard):
    source.wanted = QUIET
    net = Outer()
    source.emit = lambda event: (heard.append(event), setattr(source, "wanted", ALL))
    net(torch.ones(2))

    assert calls(heard) == [(net, True, None), (net.first, False, net), (net.second, False, net)]
    assert met(heard) == [net]


def test_who_wakes_inside_a_forward_takes_no_child_for_a_root(source, heard):
    net = Outer(lambda: setattr(source, "wanted", ALL))
    source.wanted = QUIET
    net(torch.ones(2))

    assert calls(heard) == [(net.second, False, net)]
    assert [event.module for event in heard if type(event) is ModuleReturned] == [net.second, net]


def test_who_falls_asleep_inside_a_forward_leaves_nothing_behind(source, heard):
    net = Outer(lambda: setattr(source, "wanted", QUIET))
    net(torch.ones(2))
    net.between = lambda: None
    source.wanted = ALL
    heard.clear()
    net(torch.ones(2))

    assert calls(heard)[0] == (net, True, None)


def test_a_forward_that_raises_leaves_no_parent(source, heard):
    def fail():
        raise KeyError("x")

    net = Outer(fail)
    with pytest.raises(KeyError):
        net(torch.ones(2))
    heard.clear()
    net.first(torch.ones(2))

    assert calls(heard) == [(net.first, True, None)]


def test_no_module_is_kept_alive(source):
    source.emit = lambda event: None
    net = Outer()
    net(torch.ones(2))
    gone = weakref.ref(net)
    del net
    gc.collect()

    assert gone() is None
    assert not source._met[True]


def test_a_module_without_a_mode(source, heard):
    net = Inner()
    del net.training
    net(torch.ones(2))

    assert met(heard) == [net]
