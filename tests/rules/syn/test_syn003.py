from __future__ import annotations

import pytest

from tests.rules.loops import at, cost, found, quiet, training

EVERY_STEP = training("total += int((output.argmax(1).cpu().numpy() == 0).sum())")


def test_copy_at_every_step():
    finding = found(EVERY_STEP, "SYN003")

    assert finding.site.line == at(EVERY_STEP, ".cpu()")
    assert finding.subjects[0].name == "output.argmax(1)"
    assert "output.argmax(1) (int64 on cuda:0), 128 bytes, is copied to the host with .cpu()" in finding.message
    assert "compute the metric on the device" in finding.fix
    assert cost(finding)["bytes"] == 1280


@pytest.mark.parametrize(
    "form",
    ['output.to("cpu")', "output.detach().to(torch.device('cpu'), torch.float64)", "total = output.numpy(force=True)"],
)
def test_other_forms(form):
    assert found(training(form), "SYN003").count == 10


def test_on_the_device_is_silent():
    quiet(training("total = total + (output.argmax(1) == 0).sum()", after="print(int(total))"), "SYN003")


def test_checkpoint_every_n_steps_is_silent():
    quiet(training("if step % 5 == 4: state = {k: v.cpu() for k, v in net.state_dict().items()}"), "SYN003")


def test_asynchronous_copy_is_silent():
    body = """
    later = output.detach().to("cpu", non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    """
    quiet(training(body), "SYN003")
