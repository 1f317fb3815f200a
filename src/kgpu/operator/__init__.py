"""Turns one ClusterPolicy into a working fleet and says what is not ready and why."""
