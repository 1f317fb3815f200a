"""The tags, annotations and objects that tell an autoscaler of a pool, and what has to be known besides. Pure.

Rows by who makes the nodes. Names: cluster-autoscaler's cloud providers (aws, azure, clusterapi), Karpenter v1,
NodeOverlay v1alpha1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kgpu.advise.pools import ACCELERATOR_LABELS, PoolFacts, PoolKind
from kgpu.base.printable import counted, one_line
from kgpu.formats import names, yaml

VERSION: Final = 1
_TEMPLATE: Final = "k8s.io/cluster-autoscaler/node-template/"
_CAPI: Final = "capacity.cluster-autoscaler.kubernetes.io/"
_UNUSED: Final = "0.5"
"""scale-down-gpu-utilization-threshold: below this part of its GPUs requested a node may go (the default)."""
_SLOW: Final = "10m"
_TAINT: Final = {"key": names.GPU_RESOURCE, "effect": "NoSchedule"}


def tags(pool: PoolFacts) -> dict[str, str]:
    """What a node group has to say, by key."""
    rows: dict[str, str] = {}
    for name, many in sorted(pool.resources.items()):
        rows[f"{_TEMPLATE}resources/{name}"] = str(many)
    labels = {**pool.labels, **({ACCELERATOR_LABELS[pool.kind]: pool.accelerator} if pool.accelerator else {})}
    for key, value in sorted(labels.items()):
        rows[f"{_TEMPLATE}label/{key}"] = value
    for key, value, effect in pool.taints:
        rows[f"{_TEMPLATE}taint/{key}"] = f"{value}:{effect}"
    rows[f"{_TEMPLATE}autoscaling-options/scaledowngpuutilizationthreshold"] = _UNUSED
    return rows


def _aws(pool: PoolFacts) -> dict[str, Any]:
    return tags(pool)


def _azure(pool: PoolFacts) -> dict[str, Any]:
    """Tags of a scale set may not have slashes: an underscore stands for one, and ``~2`` for an underscore."""
    return {key.replace("_", "~2").replace("/", "_"): value for key, value in tags(pool).items()}


def _cluster_api(pool: PoolFacts) -> dict[str, Any]:
    """Annotations of the MachineDeployment; one resource of GPUs has room in them."""
    gpu = max(pool.resources, key=lambda name: (pool.resources[name], name), default="")
    rows: dict[str, Any] = {f"{_CAPI}{name}": pool.basic[name] for name in ("cpu", "memory")}
    rows[f"{_CAPI}maxPods"] = pool.basic["pods"]
    if gpu:
        rows |= {f"{_CAPI}gpu-type": gpu, f"{_CAPI}gpu-count": str(pool.resources[gpu])}
    labels = ",".join(f"{key}={value}" for key, value in sorted(pool.labels.items()))
    taints = ",".join(f"{key}={value}:{effect}" for key, value, effect in pool.taints)
    return rows | ({f"{_CAPI}labels": labels} if labels else {}) | ({f"{_CAPI}taints": taints} if taints else {})


def _karpenter(pool: PoolFacts) -> dict[str, Any]:
    """What the NodePool has to say, and the NodeOverlay that adds what the machine type does not show."""
    taints = [{"key": key, **({"value": value} if value else {}), "effect": effect}
              for key, value, effect in pool.taints]  # fmt: skip
    taints += [] if pool.tainted else [_TAINT]
    spec: dict[str, Any] = {
        "template": {"metadata": {"labels": dict(pool.labels)}, "spec": {"taints": taints}},
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": _SLOW},
    }  # fmt: skip
    found: dict[str, Any] = {"nodePool": {"spec": spec}}
    if pool.hidden and pool.instance_types:
        found["nodeOverlay"] = {
            "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": pool.name},
            "spec": {
                "requirements": [
                    {"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": list(pool.instance_types)},
                ],
                "capacity": {name: str(pool.resources[name]) for name in pool.hidden},
            },
        }  # fmt: skip
    return found


def _nothing(_: PoolFacts) -> dict[str, Any]:
    return {}


_FORMS: Final[Mapping[PoolKind, tuple[str, Callable[[PoolFacts], dict[str, Any]]]]] = {
    PoolKind.AWS: ("tags of the Auto Scaling group", _aws),
    PoolKind.AZURE: ("tags of the scale set", _azure),
    PoolKind.CLUSTER_API: ("annotations of the MachineDeployment", _cluster_api),
    PoolKind.KARPENTER: ("for the NodePool", _karpenter),
    PoolKind.GCE: ("GKE takes labels and taints from the node pool itself", _nothing),
}


def notes(pool: PoolFacts) -> Iterator[str]:
    """What has to be known besides, a sentence each."""
    if not pool.resources:
        yield "its nodes offer no accelerators now: see `kgpu status` before an autoscaler is told so"
    if pool.unlike:
        shown = ", ".join(pool.unlike[:5])
        yield f"nodes of the pool offer different things, and an autoscaler takes them for alike; others: {shown}"
    if not pool.tainted:
        yield (
            f"no taint keeps pods without GPUs off: each keeps a GPU node alive; taint the pool, "
            f"{names.GPU_RESOURCE}:NoSchedule"
        )
    label = ACCELERATOR_LABELS.get(pool.kind)
    if label and not pool.accelerator:
        yield (
            f"its nodes lack the label {label}, set by their kubelet: without it a node whose GPUs are not offered yet "
            "counts as one without GPUs, and more nodes than needed are made"
        )
    if pool.hidden:
        yield f"{', '.join(pool.hidden)}: autoscalers know them by this alone; change it with the layout or the shares"
    if pool.kind is PoolKind.KARPENTER and pool.hidden:
        yield (
            "NodeOverlay is alpha (feature gate NodeOverlay of Karpenter), and holds for the machine type in every "
            "NodePool: take a type of its own for what is cut or shared"
        )
    if pool.kind is PoolKind.GCE and pool.hidden:
        yield "from zero nodes GKE knows neither slices nor shares by name: keep one node, or use GKE's own sharing"
    if pool.kind is not PoolKind.KARPENTER:
        yield "expander: least-waste goes by processors; take priority, or price where the cloud has it"


def as_data(pool: PoolFacts) -> dict[str, Any]:
    """For programs."""
    words, make = _FORMS[pool.kind]
    return {
        "version": VERSION, "pool": pool.name, "kind": str(pool.kind), "nodes": list(pool.nodes),
        "offers": dict(pool.resources), "where": words, "set": make(pool), "notes": list(notes(pool)),
    }  # fmt: skip


def as_text(pool: PoolFacts) -> str:
    """For people; what is to be set stands as it is typed."""
    words, make = _FORMS[pool.kind]
    offers = ", ".join(f"{many} {name}" for name, many in sorted(pool.resources.items())) or "nothing"
    lines = [one_line(f"Pool {pool.name} ({pool.kind}): {counted(len(pool.nodes), 'node')}, each offers {offers}"), ""]
    found = make(pool)
    lines.append(f"{words[0].upper()}{words[1:]}" + (":" if found else ""))
    if pool.kind is PoolKind.KARPENTER:
        lines += [f"  {line}" for line in yaml.dump(found).rstrip("\n").split("\n")]
    else:
        lines += [f"  {one_line(key)}={one_line(value)}" for key, value in found.items()]
    return "\n".join([*lines, "", *(f"- {one_line(note)}" for note in notes(pool))])
