"""Metrics under the names of Gaudi's metric exporter, on nodes with Gaudi accelerators alone."""
