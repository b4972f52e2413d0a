"""Stands in for ``torch_xla.amp.syncfree``: a simulated step never waits."""

from torch.optim import SGD as SGD
from torch.optim import Adam as Adam
from torch.optim import AdamW as AdamW
