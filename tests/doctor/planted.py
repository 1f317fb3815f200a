"""A cluster with secrets in every place where people put them, and a fault beside each that makes the doctor quote it."""

from __future__ import annotations

import base64
from typing import Any


def secrets_of(seed: str) -> dict[str, str]:
    """Planted secrets by the place where each is; ``seed`` is of letters and digits."""
    word = f"Zq{seed}"
    return {
        "env": f"{word}-env-value",
        "init-env": f"{word}-init-env",
        "arg": f"{word}-arg",
        "arg-next": f"{word}-next",
        "command-url": f"{word}-urlpass",
        "annotation": f"ghp_{word}{'a' * 24}",
        "applied": f"{word}-applied",
        "configmap": f"{word}-cm",
        "configmap-key": f"{word}-cmkey",
        "secret": f"{word}-secret-object",
        "secret-b64": base64.b64encode(f"{word}-binary".encode()).decode(),
        "log-bearer": f"{word}.bearer.{'b' * 12}",
        "log-password": f"{word}-logpass",
        "log-jwt": f"eyJ{word}aaaaa.{word}bbbbb.cc",
        "event": f"{word}-eventpass",
        "status": f"{word}-statuspass",
        "template-env": f"{word}-template",
        "cronjob-env": f"{word}-cron",
        "managed": f"{word}-managed",
        "host-file": f"{word}-hostfile",
    }


def cluster_with(found: dict[str, str]) -> list[dict[str, Any]]:
    """Objects that have them."""
    env = [{"name": "HF_TOKEN", "value": found["env"]}, {"name": "MY_SETTING", "value": found["env"]}]
    pod = {
        "initContainers": [{"name": "init", "image": "i", "env": [{"name": "DB", "value": found["init-env"]}]}],
        "containers": [
            {
                "name": "main",
                "image": "cuda",
                "env": env,
                "args": [f"--api-key={found['arg']}", "--password", found["arg-next"]],
                "command": ["run", f"https://user:{found['command-url']}@example.com/x"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
    }
    waiting = {"reason": "CreateContainerError", "message": f"failed: password={found['status']}"}
    return [
        {
            "kind": "Node",
            "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.present": "true"}},
            "status": {
                "capacity": {"nvidia.com/gpu": "1"},
                "allocatable": {"nvidia.com/gpu": "0"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        {
            "kind": "Pod",
            "metadata": {
                "name": "train",
                "namespace": "ml",
                "annotations": {
                    "example.com/note": f"use {found['annotation']}",
                    "kubectl.kubernetes.io/last-applied-configuration": found["applied"],
                },
                "managedFields": [{"manager": found["managed"]}],
            },
            "spec": {"nodeName": "gpu-1", **pod},
            "status": {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]},
        },
        {
            "kind": "ConfigMap",
            "metadata": {"name": "app", "namespace": "ml"},
            "data": {"app.conf": f"port = 1\npassword = {found['configmap']}\n", "API_KEY": found["configmap-key"]},
        },
        {
            "kind": "Secret",
            "metadata": {"name": "s", "namespace": "ml"},
            "stringData": {"a": found["secret"]},
            "data": {"b": found["secret-b64"]},
        },
        {
            "kind": "Deployment",
            "metadata": {"name": "serve", "namespace": "ml"},
            "spec": {
                "template": {
                    "spec": {
                        "containers": [
                            {"name": "c", "image": "i", "env": [{"name": "X", "value": found["template-env"]}]}
                        ]
                    }
                }
            },
        },
        {
            "kind": "CronJob",
            "metadata": {"name": "nightly", "namespace": "ml"},
            "spec": {
                "jobTemplate": {
                    "spec": {
                        "template": {
                            "spec": {
                                "containers": [
                                    {"name": "c", "image": "i", "env": [{"name": "X", "value": found["cronjob-env"]}]}
                                ]
                            }
                        }
                    }
                }
            },
        },
        {
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "ml"},
            "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "train"},
            "type": "Warning",
            "reason": "Failed",
            "message": f"Error: could not select device driver; token={found['event']}",
        },
    ]


def log_with(found: dict[str, str]) -> bytes:
    """What the pod's container has written."""
    return (
        f"Authorization: Bearer {found['log-bearer']}\n"
        f"connecting with password: {found['log-password']}\n"
        f"got {found['log-jwt']}\n"
        "CUDA error: no kernel image is available for execution on the device\n"
    ).encode()
