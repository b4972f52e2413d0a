from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet

LOOP = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]).to("cuda")
optimizer = torch.optim.Adam(net.parameters(), lr=0.001, foreach=False)
for step in range(2):
    net(torch.randn(4, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_one_parameter_after_the_other():
    finding = found(LOOP, "PIP010")

    assert finding.severity.value == "advice"
    assert finding.site.line == at(LOOP, "optimizer = ")
    assert finding.subjects[0].name == "optimizer"
    assert "optimizer updates its 6 parameters one after the other" in finding.message
    assert "fused=True" in finding.fix


@pytest.mark.parametrize("given", ["", ", foreach=True", ", foreach=False, capturable=True"])
def test_other_choices_are_silent(given):
    quiet(LOOP.replace(", foreach=False", given), "PIP010")


def test_on_the_host_is_silent():
    quiet(LOOP.replace('"cuda"', '"cpu"'), "PIP010", simulate=None)


def test_few_parameters_are_silent():
    quiet(LOOP.replace("range(3)", "range(1)"), "PIP010")
