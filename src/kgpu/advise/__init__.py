"""Advice before something is set up: which way to share GPUs, and what the nodes of a cluster can do."""
