from __future__ import annotations

import pytest

from deviceguard.findings import Severity
from tests.rules.loops import at, found, quiet, training
from tests.scripts import run_script

EVERY_STEP = training("if not torch.isfinite(loss): raise FloatingPointError")


def test_condition_at_every_step():
    finding = found(EVERY_STEP, "SYN004")

    assert finding.site.line == at(EVERY_STEP, "isfinite")
    assert finding.subjects[0].name == "not torch.isfinite(loss)"
    assert "is evaluated by Python in 8 of 8 steps" in finding.message
    assert "keep a flag on the device" in finding.fix


@pytest.mark.parametrize(
    "form",
    [
        "assert loss > -1",
        "total = 1 if loss > 0 else 2",
        "any(value > 1e9 for value in output[0])",
        "torch.equal(output, x[:, :3])",
        "while loss < 0: break",
    ],
)
def test_other_forms(form):
    found(training(form), "SYN004")


def test_each_parameter_is_counted():
    checks = "ok = [bool(p.grad.isfinite().all()) for p in net.parameters()]; optimizer.step()"
    source = training("pass").replace("optimizer.step()", checks)

    assert "2 times in each" in found(source, "SYN004").message


def test_flag_on_the_device_is_silent():
    source = training("total = total | ~torch.isfinite(loss.detach())", after="assert not total")
    flag = "total = torch.zeros((), dtype=torch.bool, device='cuda')"

    quiet(source.replace("total = 0", flag), "SYN004")


def test_conditions_on_host_values_are_silent():
    quiet(training("if step > 3 and loss.requires_grad and output.shape[0] == 16: pass"), "SYN004")


def test_checks_of_a_solver_are_advice():
    body = "torch.linalg.svd(torch.eye(3, device='cuda'))"

    assert found(training(body), "SYN004").severity is Severity.ADVICE


def test_checks_of_a_distribution_are_advice():
    body = "torch.distributions.Normal(output.detach().mean(), output.detach().std())"
    findings = run_script(training(body)).of("SYN004")

    assert findings
    assert {finding.severity for finding in findings} == {Severity.ADVICE}
    assert {finding.site.via for finding in findings} == {"torch"}
