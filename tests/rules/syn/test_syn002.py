from __future__ import annotations

import pytest

from tests.rules.loops import at, found, quiet, training

EVERY_STEP = training('line = f"loss {loss:.3f}"')


def test_text_at_every_step():
    finding = found(EVERY_STEP, "SYN002")

    assert finding.site.line == at(EVERY_STEP, "{loss:.3f}")
    assert finding.subjects[0].name == "loss"
    assert "loss (float32 on cuda:0) is turned into text in 8 of 8 steps" in finding.message
    assert "every N steps" in finding.fix


@pytest.mark.parametrize("form", ['print("loss", loss)', "str(loss)", 'line = "%s" % loss', 'line = f"{output}"'])
def test_other_forms(form):
    assert found(training(form), "SYN002").count == 10


def test_every_n_steps_is_silent():
    quiet(training('if step % 5 == 0: print(f"{loss.item():.3f}")'), "SYN002")


def test_shapes_and_host_values_are_silent():
    quiet(training('print(f"{tuple(output.shape)} {step} {torch.ones(())}")'), "SYN002")


def test_progress_bar_is_named(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "tqdm"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(
        "def set_postfix(**given):\n    return {k: str(v) for k, v in given.items()}\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(__import__("sys").modules, "tqdm", raising=False)
    source = training("tqdm.set_postfix(loss=loss)", before="import tqdm")
    finding = found(source, "SYN002")

    assert finding.site.via == "tqdm"
    assert finding.severity.value == "warning"
    assert finding.site.line == at(source, "set_postfix(")
    assert "tqdm" in finding.message
