"""Rows MET: the exporter, and who reads it."""
