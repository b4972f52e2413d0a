"""Stands in for ``torch_xla.debug``."""
