"""The driver of Dynamic Resource Allocation: so far what a node publishes. Begin with ``devices``."""
