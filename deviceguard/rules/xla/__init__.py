"""XLA: graphs, step markers and what falls out of them."""
