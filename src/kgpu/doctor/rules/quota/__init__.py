"""Rows QTA: pods that are refused, and quotas that do not count what they should."""
