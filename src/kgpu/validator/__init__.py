"""Proves that a node can run GPU work, check by check, and says what is missing."""
