"""Metrics of every accelerator and of the containers that use it, for Prometheus; see README.md."""
