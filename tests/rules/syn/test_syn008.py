from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet, training

BEFORE = 'images = torch.randn(64, 8).to("cuda")'
EVERY_STEP = training("chosen = images[torch.randint(0, 64, (4,))]", before=BEFORE)


def test_host_index_at_every_step():
    finding = found(EVERY_STEP, "SYN008")

    assert finding.site.line == at(EVERY_STEP, "images[torch.randint")
    assert finding.subjects[0].name == "images"
    assert "images is on cuda:0 and indexed with a host tensor (int64 on cpu) in 8 of 8 steps" in finding.message
    assert "make the index on the device" in finding.fix


@pytest.mark.parametrize(
    ("form", "kind"), [("images[[0, 3]]", "a Python list"), ("images[torch.arange(4)]", "a host tensor")]
)
def test_other_forms(form, kind):
    assert kind in found(training(form, before=BEFORE), "SYN008").message


def test_device_index_is_silent():
    quiet(
        training('chosen = images[torch.randint(0, 64, (4,), device="cuda")]; images[3]; images[1:4]', before=BEFORE),
        "SYN008",
    )


def test_host_tensor_indexed_on_the_host_is_silent():
    quiet(training("chosen = torch.randn(64)[torch.randint(0, 64, (4,))]"), "SYN008")


def test_once_is_silent():
    quiet(training("pass", before=BEFORE + "\nsplit = images[torch.randperm(64)]"), "SYN008")
