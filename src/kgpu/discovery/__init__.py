"""Feature labels of the node's accelerators. Read plan.py first."""
