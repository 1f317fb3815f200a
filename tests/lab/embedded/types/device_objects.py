"""What the tables of devices are made of."""

from __future__ import annotations

from tests.lab.embedded.types.row import Object

DRIVER = "gpu.nvidia.com"
EXACT: Object = {"deviceClassName": DRIVER}
REQUEST: Object = {"name": "gpu", "exactly": EXACT}
TERM: Object = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
UID = "0b0f2f5e-5c0c-4e54-9d6c-0f5a3f1b2c3d"


def kind(name: str, spec: Object) -> Object:
    return {"apiVersion": "resource.k8s.io/v1", "kind": name, "metadata": {"name": "x"}, "spec": spec}


CLAIM = kind("ResourceClaim", {"devices": {"requests": [REQUEST]}})
