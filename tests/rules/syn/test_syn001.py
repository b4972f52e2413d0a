from __future__ import annotations

import textwrap

import pytest

from deviceguard.errors import DeviceGuardError
from deviceguard.findings import Severity
from tests.rules.loops import at, cost, found, quiet, training
from tests.scripts import run_script

EVERY_STEP = training("total += loss.item()")


def test_read_at_every_step():
    finding = found(EVERY_STEP, "SYN001")

    assert finding.severity is Severity.WARNING
    assert finding.site.line == at(EVERY_STEP, "loss.item()")
    assert [subject.name for subject in finding.subjects] == ["loss"]
    assert finding.subjects[0].device == "cuda:0"
    assert "loss (float32 on cuda:0) is read with .item() in 8 of 8 steps" in finding.message
    assert finding.fix.startswith("sum loss.detach() on the device")
    assert finding.count == 10
    assert (finding.first_step, finding.last_step) == (0, 9)
    assert cost(finding)["share"] == 1.0
    assert "estimated_seconds" in cost(finding)


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("float(loss)", "float()"),
        ("loss.tolist()", ".tolist()"),
        ("int(loss)", "int()"),
        ("round(output.max().item(), 3)", ".item()"),
    ],
)
def test_other_forms(form, call):
    assert call in found(training(f"total = {form}"), "SYN001").message


def test_summed_on_the_device_is_silent():
    quiet(training("total = total + loss.detach()", after="print(float(total))"), "SYN001")


def test_every_n_steps_is_silent():
    quiet(training("if step % 3 == 0: total += loss.item()", steps=20), "SYN001")


def test_host_tensor_is_silent():
    quiet(training("total += torch.ones(()).item()"), "SYN001")


def test_without_accelerator_is_silent():
    source = EVERY_STEP.replace('"cuda"', '"cpu"')

    quiet(source, "SYN001", simulate=None)


def test_evaluation_during_training_is_silent():
    body = """
    if step == 6:
        with torch.no_grad():
            for batch in range(12):
                total += net(x).sum().item()
    """
    quiet(training(body, steps=9), "SYN001")


def test_first_steps_are_not_judged():
    quiet(training("if step < 2: total += loss.item()"), "SYN001")


def test_optimizers_and_scalers_read_on_their_own():
    body = "scaler.get_scale() if step == 100 else None"
    source = training(body).replace("loss.backward()", "scaler.scale(loss).backward()")
    source = source.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    source = source.replace("total = 0", 'total = 0; scaler = torch.amp.GradScaler("cuda")')

    quiet(source, "SYN001")


def test_inference_without_optimizer_is_told_at_the_end():
    source = """
    import torch
    net = torch.nn.Linear(8, 1).to("cuda")
    total = 0.0
    with torch.no_grad():
        for step in range(8):
            total += net(torch.randn(4, 8, device="cuda")).mean().item()
    """
    finding = found(source, "SYN001")

    assert finding.site.line == at(source, ".item()")
    assert "in 6 of 6 steps" in finding.message


def test_a_few_reads_outside_of_steps_are_silent():
    source = """
    import torch
    x = torch.randn(5, device="cuda")
    for value in x:
        print(value.item())
    """
    quiet(source, "SYN001")


def test_inside_a_library_is_advice():
    body = "torch.nn.BatchNorm1d(3, momentum=None).to('cuda')(output.detach())"
    finding = found(training(body), "SYN001")

    assert finding.severity is Severity.ADVICE
    assert finding.site.via == "torch"


def test_strict_raises_on_the_first_in_a_steady_step():
    with pytest.raises(DeviceGuardError, match="SYN001") as caught:
        _strictly(EVERY_STEP)

    assert caught.value.finding.count == 3


def test_strict_honours_allow():
    source = EVERY_STEP.replace("total += loss.item()", "with deviceguard.allow('SYN'): total += loss.item()")

    assert _strictly("import deviceguard\n" + source.lstrip("\n")).of("SYN") == []


EPOCH_ENDS = {
    "in the same function": """
        for epoch in range(6):
            for _ in range(5):
                loss = step()
            print(loss.item())
    """,
    "in the caller": """
        def run():
            for _ in range(5):
                loss = step()
            return loss
        for epoch in range(6):
            loss = run()
            print(loss.item())
    """,
    "of a loop written out": """
        for epoch in range(6):
            for _ in range(5):
                loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(loss.item())
    """,
}
INSIDE = {
    "in the loop": """
        for _ in range(9):
            loss = step()
            print(loss.item())
    """,
    "in a helper": """
        def show(loss):
            print(loss.item())
        for _ in range(9):
            show(step())
    """,
    "beside the step": """
        def both():
            loss = step()
            return loss.item()
        for epoch in range(2):
            for _ in range(9):
                both()
    """,
}
STEP = """
    import torch
    from torch import nn

    net = nn.Linear(8, 3).to("cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


    def step():
        loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()


"""


def _with_step(loop):
    return textwrap.dedent(STEP) + textwrap.dedent(loop)


@pytest.mark.parametrize("name", EPOCH_ENDS)
def test_strict_lets_the_end_of_an_epoch_be(name, capsys):
    assert _strictly(_with_step(EPOCH_ENDS[name])).of("SYN") == []


@pytest.mark.parametrize("name", INSIDE)
def test_strict_raises_inside_a_step(name, capsys):
    with pytest.raises(DeviceGuardError, match="SYN001"):
        _strictly(_with_step(INSIDE[name]))


def test_comment_silences():
    quiet(training("total += loss.item()  # deviceguard: ignore[SYN001]"), "SYN001")


def test_hook_in_backward_is_told_at_its_own_line():
    source = training("pass", before="def watch(gradient):\n    return gradient * float(gradient.norm() > -1)\n")
    source = source.replace("total = 0", "total = 0; net.weight.register_hook(watch)")
    finding = found(source, "SYN001")

    assert finding.site.line == at(source, "float(gradient.norm()")


def _strictly(source):
    import runpy
    import tempfile
    import warnings
    from pathlib import Path

    import deviceguard
    from tests.scripts import plain

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), deviceguard.simulate("cuda"):
        warnings.simplefilter("ignore", deviceguard.DeviceGuardWarning)
        path = Path(folder, "script.py")
        path.write_text(plain(source))
        with deviceguard.strict() as report:
            runpy.run_path(str(path), run_name="__main__")
    return report


def test_runs_the_same_with_and_without(capsys):
    run_script(training("total += loss.item()", after="print(total)"))
    guarded = capsys.readouterr().out
    run_script(training("total += loss.item()", after="print(total)"), policy="off")

    assert guarded == capsys.readouterr().out


def test_action_of_a_policy_is_the_hosts_to_know():
    quiet(
        training(
            """
            with torch.no_grad():
                action = net(torch.randn(1, 8, device="cuda")).argmax(1).item()
            """
        ),
        "SYN001",
    )


def test_metric_without_gradients_is_not():
    found(
        training(
            """
            with torch.no_grad():
                hits = (net(x).argmax(1) == 0).sum().item()
            """
        ),
        "SYN001",
    )


EPISODES = """
    import torch
    from torch import nn

    policy = nn.Linear(4, 2).to("cuda")
    optimizer = torch.optim.Adam(policy.parameters())
    for episode in range(8):
        state, logs = torch.randn(4), []
        for _ in range(4):
            chances = policy(state.to("cuda")).log_softmax(-1)
            action = torch.multinomial(chances.detach().exp(), 1)
            logs.append(chances.gather(0, action))
            state = state + 0.1 * action.item()
        loss = -torch.cat(logs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_actions_of_an_episode_that_is_learned_from_are_silent():
    quiet(EPISODES, "SYN001")


def test_the_loss_of_such_an_episode_is_not():
    source = EPISODES.replace("        optimizer.step()", "        optimizer.step()\n        print(loss.item())")

    assert found(source, "SYN001").subjects[0].name == "loss"


def test_the_scale_that_the_program_asks_for_is_told():
    body = "scaler.get_scale()"
    before = 'scaler = torch.amp.GradScaler("cuda"); scaler.scale(torch.ones(1, device="cuda"))'

    assert found(training(body, before=before), "SYN001").severity is Severity.ADVICE
