"""Metrics under the names of other vendors' own exporters, each on nodes with that vendor's GPUs alone."""
