"""Which of PyTorch's refusals an exception is, from its class and text."""

from __future__ import annotations

import re

PROBLEMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "generator-device",
        re.compile(r"Expected an? '\S+' (?:device type for )?generator|generator.*(?:device|type).*but", re.IGNORECASE),
    ),
    ("index-device", re.compile(r"indices should be either on \S+ or on the same device", re.IGNORECASE)),
    (
        "device",
        re.compile(r"Input type \(torch\.(?:cuda\.)?\w*Tensor\) and weight type \(torch\.(?:cuda\.)?\w*Tensor\)"),
    ),
    ("device", re.compile(r"Expected \w+ tensor\. Got: torch\.\w+", re.IGNORECASE)),
    ("device", re.compile(r"(?:on|at|to be on) the same device|same device,? but|different devices", re.IGNORECASE)),
    ("device", re.compile(r"module must have its parameters and buffers on device|Unhandled FakeTensor Device")),
    ("device", re.compile(r"hidden tensors are not at the same device|two devices")),
    ("device", re.compile(r"Expected object of device type|is on \S+, but expected|not on the expected device")),
    ("device", re.compile(r"expected (?:all )?\w* ?tensors? .*on (?:cuda|cpu|xla)", re.IGNORECASE)),
    ("host-only", re.compile(r"can't convert \S+ device type tensor to numpy|lengths.* (?:1D )?CPU (?:int64 )?tensor")),
    ("dtype", re.compile(r"must have the same dtype|to have the same dtype|same dtype", re.IGNORECASE)),
    ("dtype", re.compile(r"expected scalar type \w+ but found \w+|Found dtype \w+ but expected \w+", re.IGNORECASE)),
    ("dtype", re.compile(r"Input type \([^)]*\) and (?:bias|weight) type \([^)]*\) should be the same")),
    ("truncation", re.compile(r"result type \w+ can't be cast to the desired output type \w+")),
    ("dtype", re.compile(r"expected m1 and m2|dtype mismatch|expected target dtype to be", re.IGNORECASE)),
    (
        "dtype",
        re.compile(r"one of the following scalar types|not implemented for '(?:Half|BFloat16|Double|Long|Float)'"),
    ),
    (
        "dtype",
        re.compile(r"input dtype \(\S+\) does not match weight dtype|input must have the type torch\.\w+, got type"),
    ),
    ("truncation", re.compile(r"Index put requires the source and destination dtypes match")),
    (
        "truncation",
        re.compile(r"Promotion of int\.\S+\(float\) in in-place ops|self\.scalar_type\(\) == values\.scalar_type"),
    ),
    ("scaler-half", re.compile(r"Attempting to unscale FP16 gradients")),
    ("scaler-order", re.compile(r"(?:unscale_|step)\(\) (?:has already been called|is being called after step)")),
    ("scaler-order", re.compile(r"No inf checks were recorded|_scale is None")),
    ("non-leaf", re.compile(r"can't optimize a non-leaf Tensor")),
)
_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError)
_TYPES = re.compile(r"Input type \(torch\.(cuda\.)?(\w*)Tensor\) and weight type \(torch\.(cuda\.)?(\w*)Tensor\)")


def problem_of(error: BaseException) -> str:
    """The kind of refusal, ``other`` for anything that is none."""
    if not isinstance(error, _REFUSALS):
        return "other"
    text = str(error)
    types = _TYPES.search(text)
    if types and types.group(1) == types.group(3):
        return "dtype"
    return next((problem for problem, pattern in PROBLEMS if pattern.search(text)), "other")
