from __future__ import annotations

from tests.rules.findings import line, names, one, run, silent

WIDE_TARGET = """
net = nn.Linear(4, 1).to("cuda")
y = torch.zeros(8, 1, dtype=torch.float64, device="cuda")
loss = F.mse_loss(net(torch.randn(8, 4, device="cuda")), y)
"""


def test_float64_target_is_promoted_silently():
    finding = one(WIDE_TARGET, "DTY002")

    assert finding.severity.value == "warning"
    assert finding.site.line == line(WIDE_TARGET, "loss = ")
    assert names(finding) == ["y"]
    assert finding.subjects[0].dtype == "float64"
    assert finding.fix == "cast it where it is made: y.to(torch.float32)"


def test_corrected_is_silent():
    silent(WIDE_TARGET.replace("dtype=torch.float64, ", ""))


def test_refused_in_the_backward_pass():
    source = """
net = nn.Linear(4, 1)
y = torch.zeros(8, 1, dtype=torch.float64)
loss = F.huber_loss(net(torch.randn(8, 4)), y)
loss.backward()
"""
    report = run(source)

    assert {finding.subjects[0].name for finding in report.of("DTY002") if finding.subjects} == {"y"}
    assert {finding.site.line for finding in report.of("DTY002")} == {line(source, "loss = ")}


def test_refused_in_the_forward_pass():
    finding = one(
        """
logits, t = torch.randn(8, 3), torch.randint(0, 3, (8,))
criterion = nn.CrossEntropyLoss(weight=torch.ones(3).double())
criterion(logits, t)
""",
        "DTY002",
    )

    assert names(finding) == ["criterion.weight"]


def test_half_prediction_against_a_float_target_is_advice():
    report = run("F.mse_loss(torch.rand(3).bfloat16().requires_grad_(), torch.rand(3))\n")

    assert [finding.severity.value for finding in report.of("DTY002")] == ["advice"]


def test_autocast_and_integer_targets_are_silent():
    silent("""
net = nn.Linear(4, 3).to("cuda")
x, t = torch.randn(8, 4, device="cuda"), torch.randint(0, 3, (8,), device="cuda")
with torch.autocast("cuda", dtype=torch.float16):
    F.cross_entropy(net(x), t)
    F.mse_loss(net(x), torch.zeros(8, 3, device="cuda"))
F.cross_entropy(net(x), t)
""")


def test_class_indices_as_floats():
    source = """
net = nn.Linear(4, 3).to("cuda")
y = torch.tensor([0.0, 1.0, 2.0]).to("cuda")
F.cross_entropy(net(torch.randn(3, 4, device="cuda")), y)
"""
    finding = one(source, "DTY002")

    assert names(finding) == ["y"]
    assert finding.fix == "y.long()"
