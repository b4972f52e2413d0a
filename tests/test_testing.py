"""Guarded ``unittest`` cases."""

from __future__ import annotations

import io
import unittest
import warnings

import torch
from torch import nn

from deviceguard.testing import GuardedTestCase


def stale():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.weight = nn.Parameter(torch.ones(2, 4))
    net.bias = nn.Parameter(torch.ones(2))
    for _ in range(3):
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()


class Cases:
    """Kept from pytest, which would run them itself."""

    class Watched(GuardedTestCase):
        def test_found(self):
            stale()
            assert [finding.rule for finding in self.guard.expect("OPT001")] == ["OPT001"]

        def test_unwanted(self):
            self.guard.assert_none("OPT")
            stale()

    class Strict(GuardedTestCase):
        deviceguard_settings = {"policy": "strict", "simulate": "cuda"}

        def test_raises(self):
            stale()

        def test_simulated(self):
            assert nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda()).is_cuda


def outcome(case):
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = unittest.TextTestRunner(io.StringIO()).run(suite)
    return [test.id().split(".")[-1] for test, _ in [*result.failures, *result.errors]], result.testsRun


def test_what_was_asked_for_is_judged_at_the_end():
    failed, run = outcome(Cases.Watched)

    assert (failed, run) == (["test_unwanted"], 2)


def test_strict_raises_in_the_test():
    failed, run = outcome(Cases.Strict)

    assert (failed, run) == (["test_raises"], 2)
