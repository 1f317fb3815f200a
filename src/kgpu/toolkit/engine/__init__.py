"""Applying engine config changes on a node: crash-safe writes, checks, restart, and the way back."""
