from __future__ import annotations

from deviceguard.findings import Severity
from tests.rules.loops import at, found, quiet, training

BRANCH = training("if loss > 0:\n    total += 1")


def test_an_implicit_read_is_found_where_it_is_disallowed():
    finding = found(BRANCH, "SYN016", device_to_host="disallow")

    assert finding.severity is Severity.ERROR
    assert finding.site.line == at(BRANCH, "if loss > 0")
    assert finding.count == 10
    assert finding.fix.startswith("keep it on the device")


def test_logged_is_advice():
    assert found(BRANCH, "SYN016", device_to_host="log", ignore=["SYN004"]).severity is Severity.ADVICE


def test_without_implicit_reads_it_is_silent():
    quiet(training("total = torch.where(loss > 0, total + 1, total)"), "SYN016", device_to_host="disallow")


def test_optimizers_and_scalers_do_as_they_please():
    source = training(
        "optimizer.state_dict(); scaler.scale(net(x).sum()).backward(); scaler.step(optimizer); scaler.update()",
        before='scaler = torch.amp.GradScaler("cuda")',
    )

    quiet(source, "SYN016", device_to_host="disallow_explicit", select=["SYN016"])
