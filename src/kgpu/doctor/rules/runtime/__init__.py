"""Rows RUN: the container engine, and how it puts GPUs into containers."""
