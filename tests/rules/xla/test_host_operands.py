"""Rules of other families on an XLA device, which takes host operands and mixed dtypes without a word."""

from __future__ import annotations

import pytest

from tests.rules.xla.loops import SIMULATED, line, run
from tests.scripts import loud

pytestmark = pytest.mark.xla

LOOP = """
{before}
for step in range(8):
    optimizer.zero_grad()
    {inside}
    loss.backward()
    optimizer.step()
    torch_xla.sync()
"""
DATA = "x, y = torch.randn(4, 8, device=device), torch.randn(4, 4, device=device)"


def _loop(inside: str, before: str = DATA) -> str:
    return LOOP.format(inside="\n    ".join(inside.splitlines()), before=before)


def test_a_fresh_host_tensor():
    wrong = "mask = torch.ones(4)\nloss = (net(x) * mask).sum()"
    [found] = run(_loop(wrong)).of("DEV008")

    assert found.message.startswith("mask is on cpu: torch.ones")
    assert found.site.line == line(_loop(wrong), "net(x) * mask")
    assert loud(run(_loop(wrong.replace("ones(4)", "ones(4, device=x.device)")))) == []


@pytest.mark.skipif(SIMULATED is not None, reason="the simulated device refuses what the real one takes here")
def test_an_input_of_another_dtype():
    wrong = "loss = net(x.bfloat16()).sum()"
    [found] = run(_loop(wrong)).of("DTY001")

    assert found.message.startswith("x.bfloat16() is bfloat16, but net has float32 parameters")
    assert found.site.line == line(_loop(wrong), wrong)


def test_a_criterion_that_was_never_moved():
    before = DATA.replace("torch.randn(4, 4,", "torch.randint(0, 4, (4,),")
    before += "\ncriterion = nn.CrossEntropyLoss(weight=torch.ones(4))"
    [found] = run(_loop("loss = criterion(net(x), y)", before)).of("DEV002")

    assert found.subjects[0].name == "criterion.weight"
    assert "move the criterion once" in found.fix
    assert loud(run(_loop("loss = criterion(net(x), y)", before + ".to(device)"))) == []


def test_the_same_upload_at_every_step():
    before = "mean = torch.randn(4, 8)\n" + DATA
    source = _loop("loss = net(x - mean.to(device)).sum()", before)
    [found] = run(source).of("SYN009")

    assert found.subjects[0].name == "mean"
    assert found.site.line == line(source, "mean.to(device)")
    assert (
        loud(run(_loop("loss = net(x - mean).sum()", before.replace("mean = torch.randn(4, 8)", "mean = 0.5")))) == []
    )


def test_random_numbers_of_the_host_are_no_warning():
    report = run(_loop("loss = net(torch.randn(4, 8).to(device)).sum()"))

    assert loud(report) == []


def test_clipping_is_seen_although_the_package_has_a_function_of_its_own():
    clip = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    before = DATA + '\nscaler = torch.amp.GradScaler("cpu")'
    source = _loop("loss = scaler.scale(F.mse_loss(net(x), y))", before).replace(
        "    optimizer.step()", f"    {clip}\n    scaler.step(optimizer)\n    scaler.update()"
    )
    [found] = run(source).of("DTY006")

    assert found.site.line == line(source, clip)
    assert found.fix == "scaler.unscale_(optimizer) before clip_grad_norm_"
    assert run(source.replace(clip, f"scaler.unscale_(optimizer)\n    {clip}")).of("DTY006") == []
