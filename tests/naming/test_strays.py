from __future__ import annotations

import collections
import dataclasses
import functools

import torch
from torch import nn

from deviceguard.naming.strays import holder_of, shared_strays_of, strays_of


@dataclasses.dataclass
class Box:
    inner: object


@dataclasses.dataclass(slots=True)
class Slotted:
    inner: object


class Loud(nn.Module):
    """Its properties and iterators must never be run."""

    @property
    def trap(self):
        raise AssertionError("a property was run")

    def __getattr__(self, name):
        if name == "trap":
            raise AssertionError("a property was run")
        return super().__getattr__(name)


class TrappedList(list):
    def __iter__(self):
        raise AssertionError("an iterator of the user's was run")


def paths(module):
    return [stray.path for stray in strays_of(module)]


def test_plain_attributes_and_containers():
    module = Loud()
    module.registered = nn.Linear(2, 2)
    module.register_buffer("buffer", torch.ones(1))
    module.plain = torch.ones(2)
    module.listed = [nn.Linear(2, 2), torch.ones(1)]
    module.nested = {"a": {"b": (torch.ones(1),)}}
    module.ordered = collections.OrderedDict(x=torch.ones(1))
    module.queue = collections.deque([torch.ones(1)])
    module.text = "no tensor"

    assert paths(module) == [
        "plain",
        "listed[0]",
        "listed[1]",
        "nested['a']['b'][0]",
        "ordered['x']",
        "queue[0]",
    ]


def test_objects_closures_and_partials():
    module = nn.Module()
    table = torch.ones(3)
    module.box = Box(torch.ones(1))
    module.slotted = Slotted(torch.ones(1))
    module.function = lambda x: x + table
    module.partial = functools.partial(torch.add, table)

    assert paths(module) == ["box.inner", "slotted.inner", "function (closure over table)", "partial.args[0]"]


def test_runs_no_code_of_the_users():
    module = Loud()
    module.trapped = TrappedList([torch.ones(1)])

    assert paths(module) == []


def test_cycles_and_large_containers_end():
    module = nn.Module()
    cycle: list = []
    cycle.append(cycle)
    module.cycle = cycle
    module.many = list(range(100_000))

    assert paths(module) == []


def test_holder_of_a_buffer_inside_a_stray_module():
    inner = nn.BatchNorm1d(3)
    root = nn.Module()
    root.parts = [nn.Sequential(inner)]
    found = holder_of(inner.running_mean, [root])

    assert (found.module, found.path, found.inner) == (root, "parts[0]", "0.running_mean")
    assert found.attribute == "parts"


def test_registered_modules_have_no_holder():
    root = nn.Module()
    root.child = nn.Linear(2, 2)
    root.again = [root.child]

    assert holder_of(root.child, [root]) is None
    assert holder_of(torch.ones(1), [root]) is None


def test_what_all_instances_of_a_class_share():
    class Net(nn.Module):
        MEAN = torch.zeros(2)
        SIZE = 4

    net = Net()

    assert [stray.path for stray in shared_strays_of(net)] == ["MEAN"]
    assert list(strays_of(net)) == []
    assert holder_of(Net.MEAN, [net]).shared
