"""Stands in for ``torch_xla.distributed.xla_backend``, which scripts import to have the backend ``xla`` registered."""
