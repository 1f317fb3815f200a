"""Metrics under the names of AMD's device-metrics-exporter, on nodes with AMD GPUs alone."""
