from __future__ import annotations

from tests.rules.findings import names, one, silent

FORGOTTEN = """
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(5):
    opt.zero_grad()
    net(torch.randn(4, 8)).sum().backward()
    opt.step()
"""


def test_model_that_never_left_the_host():
    finding = one(FORGOTTEN, "DEV014")

    assert finding.severity.value == "warning"
    assert names(finding) == ["net", "net.weight"]
    assert finding.count == 1
    assert "net.to('cuda')" in finding.fix


def test_corrected_is_silent():
    silent(
        FORGOTTEN.replace("nn.Linear(8, 1)", 'nn.Linear(8, 1).to("cuda")').replace("(4, 8)", '(4, 8, device="cuda")')
    )


def test_cpu_chosen_by_name_is_silent():
    silent(FORGOTTEN.replace("nn.Linear(8, 1)", 'nn.Linear(8, 1).to(torch.device("cpu"))'))
    silent("torch.set_default_device('cpu')\ntry:\n    pass\nfinally:\n    torch.set_default_device(None)\n")


def test_no_accelerator_no_finding():
    silent(FORGOTTEN, None)


def test_another_model_on_the_accelerator_is_silent():
    silent("teacher = nn.Linear(8, 1).to('cuda')\n" + FORGOTTEN)


def test_two_steps_are_not_yet_a_training():
    silent(FORGOTTEN.replace("range(5)", "range(2)"))
