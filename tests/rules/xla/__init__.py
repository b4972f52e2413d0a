"""On a real XLA device, which may be the CPU."""
