"""The loss functions of ``torch.nn.functional`` and which of their arguments are operands."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional

_NAMES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)

LOSSES: tuple[Any, ...] = tuple(getattr(functional, name) for name in _NAMES if hasattr(functional, name))
_SIGNATURES: dict[Any, tuple[str, ...]] = {}


def operands_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensor arguments of a loss call by the names of its parameters."""
    names = _SIGNATURES.get(function)
    if names is None:
        names = _SIGNATURES[function] = _parameter_names(function)
    given = dict(zip(names, args, strict=False)) | kwargs
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}


def _parameter_names(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ("input", "target", "weight")
