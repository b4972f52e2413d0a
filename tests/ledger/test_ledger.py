"""The memory of identity: lineage, holders, no object kept alive, constant size."""

from __future__ import annotations

import copy
import gc
import weakref

import torch
from torch import nn

from deviceguard.guard import Guard
from deviceguard.hub import HUB


def _ledger():
    return HUB.sessions[-1].engine.ledger


def test_copies_know_what_they_are_copies_of():
    with Guard("warn", {}):
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        twin = copy.deepcopy(net)

        assert list(_ledger().ancestry(twin[0].weight)) == [("copied", net[0].weight)]
        assert _ledger().module(twin).source() is net
        assert _ledger().owner_of(twin[1].bias) == (twin, "1.bias")


def test_a_replaced_parameter_knows_whose_place_it_took():
    with Guard("warn", {}):
        net = nn.Sequential(nn.Linear(2, 3))
        before = net[0].weight
        net[0].weight = nn.Parameter(torch.zeros(3, 2))

        assert list(_ledger().ancestry(net[0].weight)) == [("replaced", before)]
        assert _ledger().former_name(before) == "0.weight"


def test_a_new_head_is_linked_to_the_old_one():
    with Guard("warn", {}):
        net = nn.Sequential(nn.Linear(2, 3))
        before = net[0].weight
        net[0] = nn.Linear(2, 5)

        assert list(_ledger().ancestry(net[0].weight)) == [("replaced", before)]


def test_nothing_is_kept_alive():
    def train():  # a frame of its own: before Python 3.13 a frame whose variables were read keeps what it then held
        net = nn.Linear(2, 3)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(1, 2)).sum().backward()
        opt.step()
        return [weakref.ref(net), weakref.ref(opt), weakref.ref(net.weight)]

    with Guard("warn", {}):
        held = train()
        gc.collect()

        assert [reference() for reference in held] == [None, None, None]


def test_many_models_leave_nothing_behind():
    with Guard("warn", {}):
        for _ in range(30):
            net = nn.Linear(2, 3)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                opt.zero_grad()
                net(torch.ones(1, 2)).sum().backward()
                opt.step()
        gc.collect()
        ledger = _ledger()

        assert len(ledger.modules()) <= 2
        assert len(ledger.models()) <= 2
        assert len(ledger.optimizers()) <= 2
        assert len(list(ledger._parameters)) <= 4
