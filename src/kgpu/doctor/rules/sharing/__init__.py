"""Rows TS and MPS: GPUs that several pods share."""
