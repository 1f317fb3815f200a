"""Does this pod fit this node, and if not, every reason why (pure)."""
