"""Rows AMD, GAU and INT: accelerators of vendors other than NVIDIA."""
