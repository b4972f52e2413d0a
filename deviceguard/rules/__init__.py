"""The rules: one small file each, ``<family>/<code>_<name>.py``, found by being there (see ``registry``)."""
