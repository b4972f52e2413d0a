"""Where and what: the user's line, the user's names for objects, and how a value came to be."""
