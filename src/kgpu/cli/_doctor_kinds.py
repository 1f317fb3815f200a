"""What may be typed for a kind in ``kgpu doctor KIND NAME``, and the kind that is meant."""

from __future__ import annotations

from typing import Final

KINDS: Final = {
    "node": "Node", "nodes": "Node", "no": "Node",
    "pod": "Pod", "pods": "Pod", "po": "Pod",
    "deployment": "Deployment", "deployments": "Deployment", "deploy": "Deployment",
    "job": "Job", "jobs": "Job",
    "cronjob": "CronJob", "cronjobs": "CronJob", "cj": "CronJob",
    "statefulset": "StatefulSet", "statefulsets": "StatefulSet", "sts": "StatefulSet",
    "daemonset": "DaemonSet", "daemonsets": "DaemonSet", "ds": "DaemonSet",
    "replicaset": "ReplicaSet", "replicasets": "ReplicaSet", "rs": "ReplicaSet",
    "claim": "ResourceClaim", "resourceclaim": "ResourceClaim", "resourceclaims": "ResourceClaim",
}  # fmt: skip
"""Plurals and short names as kubectl has them."""
