from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet, training


def test_tensor_as_alpha_at_every_step():
    source = training("moved = x.sub(x, alpha=scale)").replace(
        "loss.backward()", "loss.backward(); scale = loss.detach()"
    )
    finding = found(source, "SYN006")

    assert finding.site.line == at(source, "alpha=scale")
    assert finding.subjects[0].name == "scale"
    assert "scale (float32 on cuda:0) is given to alpha= as a number in 8 of 8 steps" in finding.message
    assert finding.fix == "multiply instead: a - alpha * b"


def test_builtin_max():
    source = training("best = max(output[0, 0], output[1, 1])")
    finding = found(source, "SYN006")

    assert finding.site.line == at(source, "max(output")
    assert "torch.maximum" in finding.fix


@pytest.mark.parametrize(
    "form",
    [
        "x[output.argmax()  % 16]",
        "x[: output.argmax() % 16]",
        "torch.zeros(output.argmax())",
        "list(range(output.argmax()))",
    ],
)
def test_other_forms(form):
    found(training(form), "SYN006")


def test_parameters_in_a_loop_without_steps():
    source = """
    import torch
    weights = [torch.randn(16, device="cuda") for _ in range(4)]
    for weight in weights:
        part = torch.dot(weight, weight)
        weight = weight.sub(weight, alpha=part)
    """
    finding = found(source, "SYN006")

    assert finding.count == 4
    assert finding.subjects[0].name == "part"


def test_tensor_arithmetic_is_silent():
    quiet(training("moved = x - output.detach().mean() * x; torch.lerp(x, x, loss.detach())"), "SYN006")


def test_python_numbers_are_silent():
    quiet(training("x.sub(x, alpha=0.5); torch.zeros(3); max(1, 2)"), "SYN006")
