from __future__ import annotations

import ast
import sys

import pytest

from deviceguard.naming.factories import factory_in


def _found(expression, frame=None):
    return factory_in(ast.parse(expression, mode="eval").body, frame)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("torch.zeros(3)", "torch.zeros"),
        ("torch.triu(torch.ones(3, 3), diagonal=1).bool()", "torch.ones"),
        ("torch.arange(4).float() * 2", "torch.arange"),
        ("2 * -torch.arange(4).to(torch.float32)", "torch.arange"),
        ("torch.rand(3) > 0.5", "torch.rand"),
        ("torch.eye(3)[0]", "torch.eye"),
        ("nn.Transformer.generate_square_subsequent_mask(5)", "nn.Transformer.generate_square_subsequent_mask"),
        ("F.one_hot(torch.arange(3), 3)", "torch.arange"),
    ],
)
def test_expressions_that_take_their_device_from_a_factory(expression, name):
    found = _found(expression)

    assert found.name == name
    assert not found.placed


@pytest.mark.parametrize(
    "expression",
    ["x", "x.new_zeros(3)", "torch.zeros(3).to(device)", "torch.ones(3).cuda()", "load(3)", "torch.sin(x)"],
)
def test_expressions_that_do_not(expression):
    assert _found(expression) is None


def test_a_device_that_is_named():
    assert _found("torch.zeros(3, device=x.device)").placed
    assert not _found("torch.zeros(3, device=None)").placed


def test_the_branch_that_was_taken():
    fixed = False  # noqa: F841, which the expressions ask for

    assert not _found("torch.zeros(3, device=x.device if fixed else None)", sys._getframe()).placed
    assert _found("torch.ones(3).to(d) if fixed else torch.zeros(3)", sys._getframe()).name == "torch.zeros"
    assert _found("torch.ones(3).to(d) if not fixed else torch.zeros(3)", sys._getframe()) is None
