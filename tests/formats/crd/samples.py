"""Manifests: the one that documents print, and one with every field of the table."""

from __future__ import annotations

import copy
import re
from typing import Any

from tests.formats.crd.sheet import Entry, entries

Raw = dict[str, Any]

PRINTED = """
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata:
  name: cluster-policy
spec:
  operator:
    defaultRuntime: containerd
  driver:
    enabled: true
    version: "550.127.08"
    repository: nvcr.io/nvidia
    image: driver
    licensingConfig:
      configMapName: ""
  toolkit:
    enabled: true
    version: v1.16.2-ubuntu22.04
  devicePlugin:
    enabled: true
    version: v0.16.2
    config:
      name: device-plugin-config
      default: default
  dcgmExporter:
    enabled: true
    version: 3.3.8-3.6.0-ubuntu22.04
    serviceMonitor:
      enabled: true             # Create ServiceMonitor for Prometheus
  mig:
    strategy: single            # "single" or "mixed"
  nodeFeatureDiscovery:
    enabled: true
  gfd:
    enabled: true
"""

VALUES = {
    "str": "text", "bool": True, "int": 7, "int32": 8, "int64": 9, "int-or-string": "50%", "quantity": "1500m",
    "duration": "1m30s",
    "K:Toleration": {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
    "K:PodSecurityContext": {
        "runAsUser": 1, "runAsNonRoot": True, "supplementalGroups": [1, 2], "sysctls": [{"name": "a", "value": "b"}],
        "seccompProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {"level": "s0"},
    },
    "K:NodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5, "preference": {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}}
        ],
    },
}  # fmt: skip

# Texts that have to say something certain.
CERTAIN = {"rollingUpdate.maxUnavailable": "10%", "rootFS": "/", "driverInstallDir": "/a", "kubeletRootDir": "/b"}


def value_of(entry: Entry) -> Any:
    """A value that is not the default where there is a choice."""
    for name, value in CERTAIN.items():
        if f".{entry.path}".endswith(f".{name}"):
            return value
    others = [item for item in entry.enum if item != entry.default]
    return others[-1] if others else copy.deepcopy(VALUES[entry.type])


def full(block: str) -> Raw:
    """A spec with every field of the block; lists and mappings have one item."""
    spec: Raw = {}
    for entry in entries(block):
        steps = re.findall(r"[^.\[{]+|\[\]|\{\}", entry.path)
        here: Any = spec
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            inner: Any = value_of(entry) if after is None else [] if after == "[]" else {}
            if step == "[]":
                if not here or after is None:
                    here.append(inner)
                here = here[0]
            else:
                here = here.setdefault("key" if step == "{}" else step, inner)
    return spec
