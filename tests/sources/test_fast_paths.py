"""The guard's modes step aside for fused inference paths, so that results are those of an unguarded run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import deviceguard

LAYERS = {
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
}
GUARDS = [deviceguard.watch, deviceguard.strict, deviceguard.migrate]


def outputs_of(layer):
    x = torch.linspace(-1, 1, 48).reshape(2, 3, 8)
    with torch.no_grad():
        return layer(x, x, x)[0] if isinstance(layer, nn.MultiheadAttention) else layer(x)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("kind", LAYERS)
def test_same_digits(kind, guard):
    torch.manual_seed(0)
    layer = LAYERS[kind]().eval()
    plain = outputs_of(layer)
    with guard():
        guarded = outputs_of(layer)

    assert torch.equal(plain, guarded)


@pytest.mark.parametrize("guard", GUARDS)
def test_the_fused_function_is_called(guard, monkeypatch):
    called = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a: called.append(a) or fused(*a))
    layer = LAYERS["layer"]().eval()
    with guard():
        outputs_of(layer)
        stack = len(_get_current_function_mode_stack())

    assert len(called) == 1
    assert stack == (2 if guard is deviceguard.migrate else 1)


def test_a_layer_that_raises_brings_the_mode_back():
    layer = LAYERS["layer"]().eval()
    with deviceguard.watch():
        with pytest.raises(AssertionError):
            layer(torch.ones(2, 3, 5))

        assert len(_get_current_function_mode_stack()) == 1


def test_a_layer_in_training_mode_is_watched():
    seen = []
    layer = LAYERS["layer"]()
    layer.linear1.register_forward_hook(lambda *_: seen.append(len(_get_current_function_mode_stack())))
    with deviceguard.watch():
        layer(torch.ones(2, 3, 8))

    assert seen == [1]
