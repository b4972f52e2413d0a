"""Everything works when the loop is in a notebook cell."""

from __future__ import annotations

import contextlib
import linecache
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import deviceguard
from deviceguard.reports.report import Report

SETUP = """\
import torch
from torch import nn
net = nn.Linear(8, 3).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
history = []
"""
LOOP = """\
for step in range(10):
    x = torch.randn(16, 8, device="cuda")
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss)
    print(f"{loss.item():.3f}")
"""
WRONG = """\
images = torch.randn(4, 8)
net(images)
"""


def ipykernel(number: int) -> str:
    """What a kernel calls the file of a cell."""
    return f"/tmp/ipykernel_4711/{1234567 + number}.py"


def terminal(number: int) -> str:
    """What IPython itself calls it."""
    return f"<ipython-input-{number}-0123456789ab>"


def run_cells(cells: list[str], name: Callable[[int], str]) -> Report:
    """Run cells in one namespace under a guard, each compiled and its lines kept as IPython does it."""
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    names = [name(number) for number in range(len(cells))]
    report = Report()
    with warnings.catch_warnings(), deviceguard.simulate("cuda"), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")
        try:
            with deviceguard.watch() as report:
                for file, cell in zip(names, cells, strict=True):
                    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
                    exec(compile(cell, file, "exec"), space)
        finally:
            for file in names:
                linecache.cache.pop(file, None)
    return report


@pytest.mark.parametrize("name", [ipykernel, terminal])
def test_lines_and_names_are_those_of_the_cell(name, capsys):
    report = run_cells([SETUP, LOOP], name)
    [read] = report.of("SYN001")

    assert (read.site.file, read.site.line, read.subjects[0].name) == (name(1), 8, "loss")
    assert read.site.source == 'print(f"{loss.item():.3f}")'
    [kept] = report.of("SYN012")
    assert (kept.subjects[0].name, kept.site.line) == ("history", 7)


@pytest.mark.parametrize("name", [ipykernel, terminal])
def test_a_cell_that_was_run_again_counts_on(name, capsys):
    report = run_cells([SETUP, LOOP, LOOP], name)

    assert len(report.of("SYN001")) == 2


def test_a_refused_call_in_a_cell(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = run_cells([SETUP, WRONG], ipykernel)
    [refused] = report.of("DEV001")

    assert (refused.site.line, refused.subjects[0].name) == (2, "images")


def test_under_real_ipython(capsys):
    interactive = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    shell = interactive.InteractiveShell.instance()
    try:
        with warnings.catch_warnings(), deviceguard.simulate("cuda"):
            warnings.simplefilter("ignore")
            with deviceguard.watch() as report:
                for cell in (SETUP, LOOP):
                    shell.run_cell(cell).raise_error()
    finally:
        shell.reset()
        interactive.InteractiveShell.clear_instance()

    assert [(found.site.line, found.subjects[0].name) for found in report.of("SYN001")] == [(8, "loss")]
