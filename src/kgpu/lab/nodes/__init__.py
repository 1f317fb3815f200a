"""Simulated nodes: kubelets in Python that join the embedded or the real API server and run pods as local processes."""
