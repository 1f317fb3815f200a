"""Changes of nodes: one engine that cordons, drains, acts, verifies and gives back."""
