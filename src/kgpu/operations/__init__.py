"""The engine that changes nodes: it cordons, drains, acts, verifies and gives back."""
