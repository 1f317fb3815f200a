"""Rows MIG: layouts of MIG slices, and what came of them."""
