from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet, training

EVERY_STEP = training("chosen = output[output > 0].sum()")


def test_mask_at_every_step():
    finding = found(EVERY_STEP, "SYN005")

    assert finding.site.line == at(EVERY_STEP, "output[output > 0]")
    assert finding.subjects[0].name == "output"
    assert "x[mask] on output (float32 on cuda:0) gives a result whose size depends on the values" in finding.message
    assert "keep the shape" in finding.fix


@pytest.mark.parametrize(
    ("form", "fix"),
    [
        ("torch.nonzero(output)", "nonzero_static"),
        ("torch.unique(output)", "in the loader"),
        ("torch.where(output > 0)", "nonzero_static"),
        ("torch.bincount(output.argmax(1))", "scatter_add_"),
        ("F.one_hot(output.argmax(1))", "num_classes"),
        ("torch.masked_select(output, output > 0)", "torch.where"),
        ("torch.repeat_interleave(output, output.argmax(1) + 1, dim=0)", "output_size"),
    ],
)
def test_other_forms(form, fix):
    assert fix in found(training(form), "SYN005").fix


def test_same_shape_is_silent():
    body = """
    valid = output > 0
    total = total + (output.detach() * valid).sum() / valid.sum()
    output.detach()[valid] = 0.0
    torch.where(valid, output, 0.0)
    F.one_hot(output.argmax(1), 3)
    """
    quiet(training(body), "SYN005")


def test_masks_on_the_host_are_silent():
    quiet(training("host = torch.randn(5); host = host[host > 0]"), "SYN005")
