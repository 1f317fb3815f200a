"""Reclaims idle GPUs: who holds them is told, warned, and stopped by a reversible act; README.md says how."""
