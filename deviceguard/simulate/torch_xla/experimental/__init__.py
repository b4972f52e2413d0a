"""Stands in for ``torch_xla.experimental``."""

from deviceguard.simulate import xla_api

from .. import _XLAC

__getattr__ = xla_api.absent("torch_xla.experimental", "compile")


def eager_mode(enable: bool) -> None:
    """Run operations one by one from here on, so that no marker is needed."""
    _XLAC._set_use_eager_mode(enable)


def is_eager_mode() -> bool:
    """Whether operations run one by one."""
    return _XLAC._get_use_eager_mode()
