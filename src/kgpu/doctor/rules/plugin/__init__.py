"""Rows DPL: the device plugin, and what its node offers."""
