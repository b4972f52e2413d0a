"""Functions that give the host a value of a tensor, so that it waits for the device."""

from __future__ import annotations

from typing import Any

import torch

READS: dict[Any, tuple[str, str, bool]] = {
    torch.Tensor.item: (".item()", "scalar", True),
    torch.Tensor.tolist: (".tolist()", "scalar", True),
    torch.Tensor.__float__: ("float()", "scalar", True),
    torch.Tensor.__int__: ("int()", "scalar", True),
    torch.Tensor.__complex__: ("complex()", "scalar", True),
}
"""By function object: how the user writes it, the kind of read, and whether the transfer is written out."""
