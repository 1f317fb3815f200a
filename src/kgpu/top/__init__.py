"""The GPUs of a cluster or of this node, live in a terminal."""
