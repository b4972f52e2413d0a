"""PIP: the input pipeline, and how busy the device is."""
