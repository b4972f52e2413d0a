from __future__ import annotations

import pytest

from deviceguard.backends.blocking import Blocking
from deviceguard.findings import Severity
from deviceguard.rules.syn import syn007_host_data_upload
from tests.rules.loops import at, cost, found, quiet, training

EVERY_STEP = training('hidden = torch.zeros(16, 8).to("cuda")')


def test_factory_moved_at_every_step():
    finding = found(EVERY_STEP, "SYN007")

    assert finding.severity is Severity.WARNING
    assert finding.site.line == at(EVERY_STEP, "torch.zeros(16, 8)")
    assert finding.subjects[0].name == "torch.zeros(16, 8)"
    assert (
        "torch.zeros(16, 8) (512 bytes) is uploaded to cuda:0 from the host by .to() in 8 of 8 steps" in finding.message
    )
    assert finding.fix == "make it on the device: torch.zeros(..., device='cuda:0')"
    assert cost(finding)["bytes"] == 5120


@pytest.mark.parametrize(
    ("form", "severity"),
    [
        ('torch.tensor(float(step), device="cuda")', Severity.WARNING),
        ('torch.tensor([0.2, 0.8], device="cuda")', Severity.WARNING),
        ('torch.tensor([float(step), 1.0], device="cuda")', Severity.ADVICE),
        ("x[0, 0] = 1.0", Severity.WARNING),
        ("torch.ones(4).cuda()", Severity.WARNING),
        ("torch.randn(4).cuda()", Severity.ADVICE),
    ],
)
def test_other_forms(form, severity):
    assert found(training(form), "SYN007").severity is severity


def test_constant_made_in_another_function():
    source = training('hidden = start().to("cuda")', before="def start():\n    return torch.zeros(16, 8)\n")

    assert "always with the same content" in found(source, "SYN007").message


def test_made_on_the_device_is_silent():
    quiet(training('hidden = torch.zeros(16, 8, device="cuda"); torch.full((), float(step), device="cuda")'), "SYN007")


def test_batches_with_new_content_are_silent():
    before = "buffer = torch.randn(100, 8)"

    quiet(training('batch = buffer[torch.randint(0, 100, (16,))].to("cuda")', before=before), "SYN007")


def test_host_generator_on_purpose_is_silent():
    before = "generator = torch.Generator().manual_seed(0)"

    quiet(training('noise = torch.randn(4, generator=generator).to("cuda")', before=before), "SYN007")


def test_before_the_loop_is_silent():
    quiet(training("pass", before='weights = torch.tensor([0.2, 0.8], device="cuda")'), "SYN007")


def test_a_device_that_takes_uploads_without_waiting_gets_advice(monkeypatch):
    monkeypatch.setattr(syn007_host_data_upload, "blocking_of", lambda device_type: Blocking(uploads_wait=False))
    finding = found(EVERY_STEP, "SYN007")

    assert finding.severity is Severity.ADVICE
    assert "waits" not in finding.message
