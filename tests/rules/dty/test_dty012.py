from __future__ import annotations

import pytest

from tests.rules.findings import line, names, run

IGNORED = """
amp_dtype = torch.bfloat16
net = nn.Linear(4, 4).to("cuda")
with torch.autocast("cuda"):
    net(torch.randn(8, 4, device="cuda"))
"""


def test_setting_that_is_not_passed_on():
    (finding,) = run(IGNORED).of("DTY012")

    assert finding.severity.value == "advice"
    assert finding.site.line == line(IGNORED, "with torch.autocast")
    assert names(finding) == ["amp_dtype", "autocast"]
    assert finding.fix == "torch.autocast('cuda', dtype=amp_dtype)"


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("import argparse\nargs = argparse.Namespace(mixed_precision='bf16')", "args.mixed_precision"),
        ("config = {'dtype': 'bfloat16'}", "config['dtype']"),
    ],
)
def test_settings_of_all_kinds(setting, name):
    (finding,) = run(IGNORED.replace("amp_dtype = torch.bfloat16", setting)).of("DTY012")

    assert names(finding)[0] == name


@pytest.mark.parametrize(
    "source",
    [
        IGNORED.replace('autocast("cuda")', 'autocast("cuda", dtype=amp_dtype)'),
        IGNORED.replace('autocast("cuda")', 'autocast("cuda", torch.float16)'),
        IGNORED.replace("torch.bfloat16", "torch.float16"),
        IGNORED.replace("amp_dtype", "other"),
        IGNORED.replace('autocast("cuda")', 'autocast("cuda", enabled=False)'),
    ],
    ids=["passed on", "another named", "the same", "no setting", "off"],
)
def test_corrected_and_legitimate_are_silent(source):
    assert run(source).of("DTY012") == []
