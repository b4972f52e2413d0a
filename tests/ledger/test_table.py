"""What is known of objects: by identity, for as long as they live."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from deviceguard.ledger.table import Table


def test_objects_are_told_apart_by_identity():
    one, other = torch.ones(2), torch.ones(2)
    table = Table()
    table[one] = "one"
    table[other] = "other"
    table[one] = "one again"

    assert (table.get(one), table.get(other), table.get(torch.ones(2))) == ("one again", "other", None)
    assert one in table
    assert len(table) == 2


def test_an_entry_lives_as_long_as_its_object():
    table = Table()
    for _ in range(200):  # so that addresses are used again
        net = nn.Linear(1, 1)
        assert table.get(net) is None
        table[net] = "known"
    del net
    gc.collect()

    assert list(table.items()) == []
    assert len(table) == 0


def test_what_dies_while_the_table_is_read_is_left_out():
    nets = [nn.ReLU() for _ in range(3)]
    table = Table()
    for number, net in enumerate(nets):
        table[net] = number
    seen = []
    for _, number in table.items():
        seen.append(number)
        nets.clear()
        net = None

    assert seen[0] == 0
    assert len(seen) < 3


def test_a_tensor_held_by_a_graph_alone_is_known_again():
    table = Table()
    leaf = nn.Parameter(torch.ones(2))
    table[leaf] = "leaf"
    output = (leaf * leaf).sum()
    del leaf
    gc.collect()
    [(found, record)] = table.items()
    output.backward()

    assert record == "leaf"
    assert found.grad is not None


def test_an_object_without_weak_references_is_refused():
    with pytest.raises(TypeError):
        Table()[1] = "one"
