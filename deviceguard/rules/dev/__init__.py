"""DEV: what is placed on which device."""
