from __future__ import annotations

import ast
import linecache
import sys

import pytest

from deviceguard.naming.provenance import assignment_of, origin_of, statement_at
from tests.scripts import run_script

SOURCE = """
import torch

def build():
    return torch.zeros(3)

def given(tensor):
    return look(sys._getframe())

def give():
    state = {"sum": 0}
    state["sum"] = torch.full((2,), 1)
    entry = state["sum"]
    return given(entry)

def use(batch, flag):
    x = torch.ones(2)
    y = x.float()
    x.to("cpu")
    for item in batch:
        z = item
    if flag:
        x = x.to("cuda")
    w[0] = 1
    seen = sys._getframe()
    return seen

class Holder:
    def __init__(self):
        self.table = torch.linspace(0, 1, 5)

    def frame(self):
        return sys._getframe()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """A script whose source is there, run in a module of its own."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SOURCE)
    linecache.checkcache(str(path))
    names = {"sys": sys, "w": [0], "__name__": "train"}
    exec(compile(SOURCE, str(path), "exec"), names)
    return names


def _line(text):
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def _origin(script, expression, line="seen ="):
    return origin_of(expression, script["use"]([1], False), _line(line))


def test_factory_and_discarded_move(script):
    found = _origin(script, "x")

    assert found.factory == "torch.ones"
    assert found.bound_at.line == _line("x = torch.ones")
    assert found.discarded_at.line == _line('x.to("cpu")')


def test_binding_in_a_branch_that_was_not_taken_is_passed_over(script):
    assert _origin(script, "x").bound_at.line != _line("        x = x.to")


def test_loop_variables_and_plain_names(script):
    assert _origin(script, "z").bound_at.source == "z = item"
    assert _origin(script, "item", "z = item").bound_at.source == "for item in batch:"


def test_an_argument_is_followed_through_its_call_and_the_entry_of_a_container(script):
    script["look"] = lambda frame: origin_of("tensor", frame, frame.f_lineno)
    found = script["give"]()

    assert found.factory == "torch.full"
    assert found.bound_at.line == _line('state["sum"] = torch')


def test_items_do_not_bind(script):
    assert _origin(script, "w").bound_at is None


def test_the_statement_that_uses_a_name_does_not_bind_it(script):
    assert _origin(script, "x", "x = torch.ones").bound_at is None


def test_result_of_a_function_of_the_users(script):
    found = _origin(script, "build()")

    assert found.factory == "torch.zeros"
    assert found.factory_at.line == _line("return torch.zeros")


def test_attribute_and_its_assignment(script):
    holder = script["Holder"]()
    found = origin_of("self.table", holder.frame(), _line("return sys._getframe()"))

    assert found.factory == "torch.linspace"
    assert assignment_of("table", script["Holder"]).line == _line("self.table")
    assert assignment_of("missing", script["Holder"]) is None


@pytest.mark.parametrize("expression", [None, "", "not python", "torch.ones(3, device='cuda')", "1 + 1"])
def test_expressions_that_tell_nothing(script, expression):
    assert _origin(script, expression).factory is None


def test_statement_that_a_frame_runs(script):
    holder = script["Holder"]()

    assert isinstance(statement_at(holder.frame()), ast.Return)
    assert statement_at(sys._getframe()) is not None


def test_argument_is_not_taken_for_a_variable_of_the_module():
    report = run_script(
        """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.RNN(4, 4)

            def forward(self, x, hidden):
                out, hidden = self.rnn(x, hidden)
                return out, hidden

        net = Net().to("cuda")
        start = torch.zeros(1, 2, 4)
        hidden = torch.zeros(1, 2, 4, device="cuda")
        output, hidden = net(torch.randn(3, 2, 4, device="cuda"), hidden)
        net(torch.randn(3, 2, 4, device="cuda"), start)
        """,
        raises=RuntimeError,
    )
    (finding,) = report.of("DEV001")

    assert finding.subjects[0].name == "start"
    assert finding.site.source.endswith("start)")
    assert "line 14" in finding.message
