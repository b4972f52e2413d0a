"""What makes the host wait, form by form: every form below was measured on PyTorch's own CUDA build."""

from __future__ import annotations

import pytest
import torch

import deviceguard
from deviceguard.events import CacheEmptied, Synchronized, Uploaded
from deviceguard.rules.registry import rule_class
from deviceguard.sources.sync_table import before
from tests.sources.sync_forms import READS, SET_UP, SILENT, UPLOADS, WAITS, captured, kind_of, seen
from tests.sources.sync_rows import HARMLESS, SYNCS

RULES = {
    **{"scalar": "SYN001", "format": "SYN002", "copy": "SYN003", "branch": "SYN004", "check": "SYN004"},
    **{"shape": "SYN005", "number": "SYN006", "data": "SYN007", "write": "SYN007", "index": "SYN008"},
    **{"move": "SYN007", "Synchronized": "SYN010", "CacheEmptied": "SYN011"},
}
"""The rule that judges each kind; moves are PIP002's and SYN009's too."""


@pytest.mark.parametrize("row", SYNCS)
def test_each_row_has_its_forms_or_a_reason(row):
    forms = SYNCS[row]

    assert isinstance(forms, str) or {*forms} <= {*READS, *UPLOADS, *WAITS}


@pytest.mark.parametrize("row", HARMLESS)
def test_each_harmless_row_has_its_forms_or_a_reason(row):
    assert isinstance(HARMLESS[row], str) or {*HARMLESS[row]} <= {*SILENT}


def test_every_form_belongs_to_a_row():
    named = {form for rows in (SYNCS, HARMLESS) for forms in rows.values() for form in forms if len(form) > 1}

    assert {*READS, *UPLOADS, *WAITS} <= named


@pytest.mark.parametrize("kind", RULES)
def test_each_kind_is_some_rules(kind):
    rule = rule_class(RULES[kind])
    families = getattr(rule, "families", frozenset())

    assert kind in families or {Uploaded, Synchronized, CacheEmptied} & {*rule.handlers()}


@pytest.mark.parametrize("name", READS)
def test_read_is_seen(name):
    family, form = READS[name]

    assert family in seen(form)


@pytest.mark.parametrize("name", UPLOADS)
def test_upload_is_seen(name):
    kind, form = UPLOADS[name]

    assert kind in seen(form)


@pytest.mark.parametrize("name", WAITS)
def test_wait_is_seen(name):
    kind, form = WAITS[name]

    assert seen(form) == [kind]


@pytest.mark.parametrize("name", [name for name in SILENT if name not in SET_UP])
def test_harmless_form_is_silent(name):
    assert seen(SILENT[name]) == []


def test_pinned_upload_without_waiting_is_a_queued_copy():
    with captured() as events:
        pinned = torch.randn(4).pin_memory()
        events.clear()
        pinned.to("cuda", non_blocking=True)

    assert [kind_of(event) for event in events] == ["move", "CopyQueued"]
    assert events[0].pinned
    assert events[0].non_blocking


def test_download_without_waiting_is_a_queued_copy_and_no_read():
    with captured() as events:
        x = torch.randn(4, device="cuda")
        events.clear()
        x.to("cpu", non_blocking=True)

    assert [kind_of(event) for event in events] == ["CopyQueued"]


def test_list_of_arrays():
    import numpy as np

    with captured() as events:
        torch.tensor([np.zeros(3), np.zeros(3)])

    assert [kind_of(event) for event in events] == ["ArraysConverted"]


def test_hooks_inside_backward_are_seen():
    with captured() as events:
        weight = torch.randn(3, device="cuda", requires_grad=True)
        weight.register_hook(lambda gradient: gradient.sum().item() and None)
        loss = (weight * 2).sum()
        events.clear()
        loss.backward()

    assert [kind_of(event) for event in events] == ["scalar"]


def test_checkpoint_recomputation_is_seen():
    from torch.utils.checkpoint import checkpoint

    def block(x):
        x.sum().item()
        return x.sin()

    with captured() as events:
        x = torch.randn(3, device="cuda", requires_grad=True)
        loss = checkpoint(block, x, use_reentrant=False).sum()
        events.clear()
        loss.backward()

    assert "scalar" in [kind_of(event) for event in events]


def test_a_call_counts_once():
    with captured() as events:
        x = torch.randn((), device="cuda")
        events.clear()
        x.item()
        f"{x:.3f}"
        print(x)

    assert [kind_of(event) for event in events] == ["scalar", "format", "format"]


def test_what_does_not_wait_on_a_traced_device():
    from deviceguard.backends.blocking import blocking_of

    assert not blocking_of("xla").uploads_written_numbers
    assert blocking_of("xla").counts_masks_when_filling


def test_a_refused_call_keeps_its_own_error():
    with captured(), pytest.raises(TypeError):
        torch.tensor([1.0]).to("cuda").numpy()


def test_a_row_that_fails_is_the_guards_failure_and_changes_nothing(monkeypatch):
    """Unless PyTorch refuses the call too: then its arguments were the program's mistake."""
    monkeypatch.setitem(before(), torch.Tensor.item, lambda args, kwargs: 1 / 0)
    with deviceguard.simulate("cuda"), deviceguard.watch() as report:
        assert torch.tensor(2.0).to("cuda").item() == 2.0
        with pytest.raises(RuntimeError):
            torch.zeros(2, device="cuda").item()

    assert report.internal_errors == 1
