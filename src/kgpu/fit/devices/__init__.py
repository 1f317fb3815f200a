"""Devices for resource claims: read, allocated as kube-scheduler allocates them, explained. See README.md."""
