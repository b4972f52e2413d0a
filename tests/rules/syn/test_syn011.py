from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet, training

EVERY_STEP = training("torch.cuda.empty_cache()")


def test_at_every_step():
    finding = found(EVERY_STEP, "SYN011")

    assert finding.site.line == at(EVERY_STEP, "empty_cache()")
    assert "torch.cuda.empty_cache() is called in 8 of 8 steps" in finding.message
    assert "remove it" in finding.fix


@pytest.mark.parametrize("body", ["pass", "if step == 8: torch.cuda.empty_cache()"])
def test_without_or_rarely_is_silent(body):
    quiet(training(body), "SYN011")


def test_between_models_is_silent():
    quiet(training("pass", after="del net\ntorch.cuda.empty_cache()"), "SYN011")
