"""The driver of Dynamic Resource Allocation: what a node publishes, and how claims are prepared there."""
