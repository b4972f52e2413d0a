"""The summary: what a person sees, on a terminal and in a file."""

from __future__ import annotations

import io
import textwrap

import pytest

from deviceguard.findings import Finding, Severity, Site
from deviceguard.reports.report import Report
from deviceguard.reports.terminal import render, show
from deviceguard.steps import Steps


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def screen(monkeypatch, tmp_path):
    """80 columns, 24 lines, colours."""
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def finding(severity=Severity.ERROR, rule="DEV001", line=22, **fields):
    site = fields.pop("site", Site("train.py", line, "fit", "outputs = net(images)"))
    message = fields.pop("message", "images is on cpu, but net (nn.Linear) has its parameters on cuda:0.")
    return Finding(rule, "input-device", severity, message, "images = images.to('cuda:0')", site, **fields)


def report(*findings, failures=0, steps=0, watched=None):
    made = Report()
    if steps:
        made.progress = Steps()
        made.progress.training = True
        made.progress.number = steps - 1
        made.progress.index = (watched or steps) - 1
    made.internal_errors = failures
    for one in findings:
        made.add(one)
    return made


def plain(*findings, **options):
    return render(report(*findings, **options), io.StringIO())


def test_a_block_has_rule_place_source_message_fix_and_count():
    text = plain(finding(count=12, first_step=0, last_step=11), steps=12)
    assert text == textwrap.dedent("""
        deviceguard: 1 error in 12 training steps

        error DEV001 input-device  train.py:22 in fit  (12 times, steps 0 to 11)
          22 | outputs = net(images)
          images is on cpu, but net (nn.Linear) has its parameters on cuda:0.
          fix: images = images.to('cuda:0')
        """)


def test_the_worst_comes_first():
    text = plain(finding(Severity.ADVICE, "PIP001"), finding(Severity.WARNING, "SYN001"), finding(), finding(line=23))
    order = [text.index(part) for part in ("2 errors, 1 warning, 1 advice", "DEV001", "SYN001", "PIP001")]
    assert order == sorted(order)


def test_nothing_found_is_one_line():
    assert plain() == "deviceguard: nothing found\n"
    assert plain(steps=1) == "deviceguard: nothing found in 1 training step\n"


def test_how_much_of_a_long_run_was_looked_at():
    head = "deviceguard: nothing found in 5000 training steps, of which 196 were looked at and are counted below\n"
    assert plain(steps=5000, watched=196) == head


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "in fit\n"),
        ({"count": 3}, "in fit  (3 times)\n"),
        ({"first_step": 4}, "in fit  (step 4)\n"),
        ({"first_step": 4, "last_step": 4, "count": 2}, "in fit  (2 times, step 4)\n"),
        ({"site": Site("<string>", 3)}, "input-device  <string>:3\n  images"),
        ({"site": Site("train.py", 3, via="tqdm")}, "train.py:3 through tqdm\n"),
        ({"site": None}, "input-device\n  images"),
    ],
)
def test_what_is_not_known_is_left_out(fields, shown):
    assert shown in plain(finding(**fields))


def test_square_brackets_and_colons_are_no_markup():
    text = plain(finding(message="net.layers[0][bold] :smile: [/] is on cpu"))
    assert "net.layers[0][bold] :smile: [/] is on cpu" in text


def test_lines_in_a_file_are_not_wrapped():
    assert f"\n  {'word ' * 60}end\n" in plain(finding(message="word " * 60 + "end"))


def test_failures_of_the_guard_are_told():
    assert "deviceguard itself failed once" in render(report(failures=1), io.StringIO())
    assert "deviceguard itself failed 3 times" in render(report(failures=3), io.StringIO())


def test_what_was_just_read_is_not_told_again():
    raised = finding()
    text = render(report(raised, finding(line=30)), io.StringIO(), told=raised)
    assert "2 errors (one told above)" in text
    assert "train.py:22" not in text
    assert "train.py:30" in text


def test_on_a_terminal_there_are_colours_and_indented_wraps():
    text = render(report(finding(message="word " * 30 + "end")), Screen())
    assert "\x1b[1;31merror\x1b[0m" in text
    inside = text.partition("net(images)")[2].partition("\x1b")[0].rstrip().strip("\n").splitlines()
    assert len(inside) > 1
    assert all(line.startswith("  word") for line in inside)


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in render(report(finding()), Screen())


def test_a_dumb_terminal_gets_plain_text(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in render(report(finding()), Screen())


def test_it_fits_a_screen_and_counts_the_rest():
    many = [finding(line=line) for line in range(40)] + [finding(Severity.WARNING, "SYN001")]
    text = render(report(*many), Screen())
    assert len(text.splitlines()) <= 24 + 6
    assert "more, which --json FILE has: " in text
    assert "SYN001 input-device" in " ".join(text.split())


def test_a_finding_longer_than_the_screen_is_shown_all_the_same():
    assert text_of_lines(40) in render(report(finding(message=text_of_lines(40))), io.StringIO()).replace("\n  ", "\n")


def text_of_lines(number):
    return "\n".join(f"line {index}" for index in range(number))


def test_show_writes_and_flushes():
    stream = io.StringIO()
    show(report(finding(), steps=3), stream)
    assert stream.getvalue() == plain(finding(), steps=3)
