"""DTY: what has which dtype."""
