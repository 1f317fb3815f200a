"""Proves that a node can run GPU work, check by check, and reports what is missing."""
