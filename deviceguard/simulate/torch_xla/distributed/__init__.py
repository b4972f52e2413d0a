"""Stands in for ``torch_xla.distributed``."""
