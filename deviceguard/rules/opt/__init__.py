"""OPT: the optimizer and what it trains."""
