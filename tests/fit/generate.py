"""Random clusters and pods, as API objects: small enough that filters meet each other, valid enough for the real API.

The same seed gives the same case. Used by the tests of ``kgpu.fit`` alone and by the comparison with kube-scheduler.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

NAMESPACES = {"fit-a": {"team": "red"}, "fit-b": {"team": "blue"}, "fit-c": {}}
"""By name, with their labels."""
PRIORITIES = {"fit-low": -10, "fit-high": 1000, "fit-never": 1000}
"""Priority classes; pods of fit-never don't preempt."""
GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-L4", "Tesla-T4")
KEYS = (HOST, ZONE, "rack", PRODUCT)
TAINTS = (
    {"key": GPU, "value": "present", "effect": "NoSchedule"},
    {"key": GPU, "effect": "NoSchedule"},
    {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "web", "effect": "PreferNoSchedule"},
    {"key": "broken", "value": "xid", "effect": "NoExecute"},
)
TOLERATIONS = (
    {"operator": "Exists"},
    {"key": GPU, "operator": "Exists"},
    {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
    {"key": GPU, "operator": "Equal", "value": "present"},
    {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
    {"key": "dedicated", "operator": "Equal", "value": "web"},
    {"key": "broken", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
)
APPS = ("web", "train", "cache")


@dataclass
class Generator:
    """Draws objects; ``prefix`` keeps the names of one round apart from the others'."""

    random: random.Random
    prefix: str = "n"
    drawn: int = field(default=0)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def nodes(self) -> list[Object]:
        return [self.node(f"{self.prefix}-{index}") for index in range(self.random.randint(1, 6))]

    def node(self, name: str) -> Object:
        draw = self.random
        labels = {HOST: name, "round": self.prefix}
        labels |= {ZONE: draw.choice("abc")} if self.chance(0.85) else {}
        labels |= {"rack": draw.choice(("r1", "r2", ""))} if self.chance(0.7) else {}
        if self.chance(0.6):
            labels |= {PRODUCT: draw.choice(PRODUCTS), MEMORY: draw.choice(("81559", "24576", "n-a", "16384"))}
        sizes = {
            "cpu": draw.choice(("1", "2", "3500m", "8")),
            "memory": draw.choice(("1Gi", "2Gi", "1500Mi")),
            "ephemeral-storage": draw.choice(("2Gi", "10Gi")),
            "pods": draw.choice(("2", "4", "110", "110")),
        }
        if PRODUCT in labels or self.chance(0.2):
            sizes[GPU] = draw.choice(("0", "1", "2", "8"))
        if self.chance(0.2):
            sizes["hugepages-2Mi"] = "4Mi"
        if self.chance(0.2):
            sizes["nvidia.com/mig-1g.10gb"] = "2"
        allocatable = dict(sizes)
        if GPU in sizes and self.chance(0.15):
            allocatable[GPU] = str(int(sizes[GPU]) // 2)
        drawn = draw.sample(TAINTS, draw.choice((0, 0, 0, 0, 1, 2)))
        taints = list({(taint["key"], taint["effect"]): taint for taint in drawn}.values())
        spec: Object = {"taints": taints} if taints else {}
        if self.chance(0.1):
            spec["unschedulable"] = True
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"capacity": sizes, "allocatable": allocatable, "conditions": conditions},
        }

    def pods_on(self, nodes: list[Object]) -> list[Object]:
        """Pods that are bound already."""
        found = []
        for node in nodes:
            for _ in range(self.random.choice((0, 1, 1, 2, 3))):
                pod = self.pod(bound=True)
                pod["spec"]["nodeName"] = node["metadata"]["name"]
                # Nobody may evict it in the middle of a comparison.
                pod["spec"]["tolerations"] = [{"operator": "Exists"}]
                found.append(pod)
        return found

    def pod(self, *, bound: bool = False) -> Object:
        """Half of the pods have something of everything, the others are about one thing, which then shows."""
        pod = self._pod(bound=bound)
        if self.chance(0.5):
            topics = (
                "priorityClassName",
                "affinity",
                "topologySpreadConstraints",
                "nodeSelector",
                "volumes",
                "tolerations",
            )
            topic = self.random.choice(topics)
            spec = pod["spec"]
            for name in {*topics, "initContainers", "resources"} - {topic, "tolerations"}:
                spec.pop(name, None)
            if topic != "priorityClassName":
                for container in spec["containers"]:
                    container.pop("ports", None)
                    container["resources"] = {}
        return pod

    def _pod(self, *, bound: bool) -> Object:
        draw = self.random
        self.drawn += 1
        labels = {"app": draw.choice(APPS)} if self.chance(0.85) else {}
        labels |= {"version": draw.choice("12")} if self.chance(0.3) else {}
        spec: Object = {"containers": self.containers(), "terminationGracePeriodSeconds": 0, "restartPolicy": "Always"}
        if self.chance(0.25):
            spec["initContainers"] = [self.container(f"i{index}", init=True) for index in range(draw.choice((1, 2, 3)))]
        if self.chance(0.45):
            spec["priorityClassName"] = draw.choice(tuple(PRIORITIES))
        if self.chance(0.4):
            spec["tolerations"] = draw.sample(TOLERATIONS, draw.choice((1, 1, 2, 3)))
        if self.chance(0.08) and not bound:
            spec["resources"] = {"requests": {"cpu": draw.choice(("500m", "3"))}, "limits": {"memory": "1Gi"}}
        affinity = {
            **({"podAntiAffinity": self.pod_affinity()} if self.chance(0.35) else {}),
            **({"podAffinity": self.pod_affinity()} if self.chance(0.3) else {}),
        }
        if not bound:
            affinity |= {"nodeAffinity": self.node_affinity()} if self.chance(0.3) else {}
            self.placement(spec)
        if affinity:
            spec["affinity"] = affinity
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{self.prefix}-p{self.drawn}",
                "namespace": draw.choice(tuple(NAMESPACES)),
                "labels": labels,
            },
            "spec": spec,
        }

    def placement(self, spec: Object) -> None:
        """What only pods have that are still to be placed."""
        draw = self.random
        if self.chance(0.2):
            key = draw.choice((ZONE, PRODUCT, "rack", "absent"))
            spec["nodeSelector"] = {key: draw.choice({ZONE: ("a", "b"), PRODUCT: PRODUCTS}.get(key, ("r1", "")))}
        if self.chance(0.5):
            spec["topologySpreadConstraints"] = self.spreads()
        if self.chance(0.02):
            spec["schedulingGates"] = [{"name": "example.com/wait"}]
        if self.chance(0.05):
            claim = draw.choice(("fit-missing", "fit-unbound", "fit-bound", "fit-bound"))
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        if self.chance(0.03):
            name = draw.choice(("fit-no-class", "fit-no-device"))
            spec["resourceClaims"] = [{"name": "device", "resourceClaimName": name}]

    def containers(self) -> list[Object]:
        return [self.container(f"c{index}") for index in range(self.random.choice((1, 1, 1, 2)))]

    def container(self, name: str, *, init: bool = False) -> Object:
        draw = self.random
        requests = {"cpu": draw.choice(("100m", "250m", "500m", "1", "3"))} if self.chance(0.6) else {}
        requests |= {"memory": draw.choice(("100Mi", "0.5Gi", "1Gi", "123456789"))} if self.chance(0.5) else {}
        requests |= {"ephemeral-storage": draw.choice(("1Gi", "5Gi"))} if self.chance(0.1) else {}
        limits: Object = {GPU: draw.choice((1, 1, 2, 4, 8))} if self.chance(0.3) else {}
        limits |= {"nvidia.com/mig-1g.10gb": 1} if self.chance(0.06) else {}
        if self.chance(0.04):
            limits |= {"hugepages-2Mi": draw.choice(("2Mi", "8Mi"))}
            requests.setdefault("cpu", "100m")
        if self.chance(0.1):
            limits["cpu"] = "4"
        found: Object = {
            "name": name,
            "image": "registry.invalid/none",
            "resources": {"requests": requests, "limits": limits},
        }
        if init and self.chance(0.4):
            found["restartPolicy"] = "Always"
        if self.chance(0.12):
            port: Object = {"containerPort": 80, "hostPort": draw.choice((80, 8080))}
            port |= {"hostIP": draw.choice(("127.0.0.1", "10.0.0.1", "0.0.0.0"))} if self.chance(0.4) else {}
            port |= {"protocol": "UDP"} if self.chance(0.2) else {}
            found["ports"] = [port]
        return found

    def label_selector(self) -> Object:
        draw = self.random
        kind = draw.randrange(9)
        if kind == 0:
            return {}
        if kind < 5:
            return {"matchLabels": {"app": draw.choice(APPS)}}
        expression = {
            5: {"key": "app", "operator": "In", "values": draw.sample(APPS, 2)},
            6: {"key": "app", "operator": "NotIn", "values": [draw.choice(APPS)]},
            7: {"key": "version", "operator": "Exists"},
            8: {"key": "version", "operator": "DoesNotExist"},
        }[kind]
        return {"matchExpressions": [expression]}

    def pod_affinity(self) -> Object:
        terms = [self.pod_term() for _ in range(self.random.choice((1, 1, 2)))]
        found: Object = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        if self.chance(0.2):
            found["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": 10, "podAffinityTerm": self.pod_term()}
            ]
        return found

    def pod_term(self) -> Object:
        draw = self.random
        term: Object = {"topologyKey": draw.choice(KEYS), "labelSelector": self.label_selector()}
        if self.chance(0.05):
            del term["labelSelector"]
        elif self.chance(0.1) and "version" not in str(term["labelSelector"]):
            # The API server refuses keys that the selector has already.
            term[draw.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
        if self.chance(0.25):
            term["namespaces"] = draw.sample(tuple(NAMESPACES), draw.choice((1, 2)))
        if self.chance(0.25):
            term["namespaceSelector"] = draw.choice(
                (
                    {},
                    {"matchLabels": {"team": "red"}},
                    {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
                    {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]},
                    {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]},
                )
            )
        return term

    def node_affinity(self) -> Object:
        terms = [self.node_term() for _ in range(self.random.choice((1, 1, 2)))]
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    def node_term(self) -> Object:
        draw = self.random
        found: Object = {}
        if self.chance(0.1):
            names = [f"{self.prefix}-{draw.randrange(7)}" for _ in range(draw.choice((1, 1, 2)))]
            operator = draw.choice(("In", "In", "In", "NotIn"))
            found["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]} for name in names]
        if not found or self.chance(0.3):
            found["matchExpressions"] = [self.node_expression() for _ in range(draw.choice((1, 1, 2)))]
        return found

    def node_expression(self) -> Object:
        draw = self.random
        operator = draw.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        if operator in ("Gt", "Lt"):
            values = [draw.choice(("24576", "79000", "81559", "0", "not-a-number"))]
            return {"key": draw.choice((MEMORY, ZONE)), "operator": operator, "values": values}
        key = draw.choice((ZONE, PRODUCT, "rack", HOST, "absent"))
        if operator in ("Exists", "DoesNotExist"):
            return {"key": key, "operator": operator}
        pool = {
            ZONE: ("a", "b", "c"),
            PRODUCT: PRODUCTS,
            "rack": ("r1", "r2"),
            HOST: (f"{self.prefix}-0", f"{self.prefix}-1"),
        }
        values = draw.sample(pool.get(key, ("x", "y")), draw.choice((1, 2)))
        return {"key": key, "operator": operator, "values": values}

    def spreads(self) -> list[Object]:
        draw = self.random
        keys = draw.sample(KEYS, draw.choice((1, 1, 2)))
        return [self.spread(key) for key in keys]

    def spread(self, key: str) -> Object:
        draw = self.random
        hard = self.chance(0.8)
        found: Object = {
            "maxSkew": draw.choice((1, 1, 2)),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": self.label_selector(),
        }
        if hard and self.chance(0.25):
            found["minDomains"] = draw.choice((1, 2, 5))
        if self.chance(0.25):
            found["nodeAffinityPolicy"] = draw.choice(("Honor", "Ignore"))
        if self.chance(0.25):
            found["nodeTaintsPolicy"] = draw.choice(("Honor", "Ignore"))
        if self.chance(0.15) and "version" not in str(found["labelSelector"]):
            found["matchLabelKeys"] = ["version"]
        return found


def backdrop() -> list[Object]:
    """What every round shares beside namespaces: priority classes, volumes and claims, and a claim for devices."""
    objects: list[Object] = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "preemptionPolicy": "Never" if name == "fit-never" else "PreemptLowerPriority",
        }
        for name, value in PRIORITIES.items()
    ]
    objects.append(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "fit-class"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'none.example.com'"}}]},
        }
    )
    for namespace in NAMESPACES:
        objects.append(_volume(f"fit-{namespace}", namespace))
        for name, volume in (("fit-unbound", ""), ("fit-bound", f"fit-{namespace}")):
            objects.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": {
                        "accessModes": ["ReadWriteMany"],
                        "storageClassName": "",
                        "resources": {"requests": {"storage": "1Gi"}},
                        **({"volumeName": volume} if volume else {}),
                    },
                }
            )
        for name, device_class in (("fit-no-class", "fit-absent"), ("fit-no-device", "fit-class")):
            request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
            objects.append(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": {"devices": {"requests": [request]}},
                }
            )
    return objects


def _volume(name: str, namespace: str) -> Object:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": "/nonexistent"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": namespace,
                "name": "fit-bound",
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
