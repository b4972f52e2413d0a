"""Sources turn what PyTorch does into events. They know hooks, modes and patches; they know nothing of rules."""
