"""Warnings name the user's line, whatever of ours stands between it and PyTorch."""

import inspect
import warnings

import torch
import torch.nn.functional as F

import deviceguard
from deviceguard.simulate import simulate


def _shown(action, *lines):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        for line in lines:
            line()
    return [(one.filename, one.lineno) for one in shown]


def _line(function):
    return inspect.getsourcefile(function), inspect.getsourcelines(function)[1]


def test_python_and_cpp_warnings_name_the_users_line():
    """Of a function that asks for modes first, of C++, and of one with a stack level."""
    x = torch.ones(2, 3, requires_grad=True)
    lines = (
        lambda: F.kl_div(x, x),
        lambda: F.mse_loss(x, x[:1]),
        lambda: (x * 2).grad,
    )
    expected = _shown("always", *lines)
    with simulate("cuda"):
        x = x.detach().cuda().requires_grad_()
        shown = _shown("always", *lines)

    assert shown == expected == [_line(line) for line in lines]


def test_each_line_is_shown_once():
    """With the filter that shows a warning once for each place, a second place is shown too."""
    with simulate("cuda"):
        x = torch.ones(2, device="cuda")
        first = lambda: F.kl_div(x, x)  # noqa: E731
        second = lambda: F.kl_div(x, x)  # noqa: E731

        assert _shown("default", first, first, second) == [_line(first), _line(second)]


def test_under_the_guard_alone():
    """Schedulers are watched by a patch, which is not where the mistake is."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    before = vars(warnings)["_showwarnmsg"]
    with deviceguard.watch():
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        line = lambda: scheduler.step()  # noqa: E731
        shown = _shown("always", line)

    assert _line(line) in shown
    assert not any("deviceguard/sources" in file for file, _ in shown)
    assert vars(warnings)["_showwarnmsg"] is before
