"""Rows POD, IMG and NET, and pods that run without a GPU: what goes wrong once a pod has a node."""
