"""Rows TNT about feature discovery and labels that do not say what the node is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.matching import GFD, NFD_MASTER
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_PCI: Final = "10de"
_NFD_NODE: Final = names.NFD_NODE_NAME_LABEL
_WORDS: Final = re.compile(r"[^a-z0-9]+")


@rule("TNT-03", "A toleration is no affinity", Place.CLUSTER)
def on_plain_node(snapshot: Snapshot) -> Iterator[Finding]:
    """A toleration permits, it does not attract: without a request for GPUs or an affinity the pod may run anywhere."""
    gpu_nodes = {node.name for node in matching.gpu_nodes(snapshot)}
    for pod in snapshot.pods.values() if gpu_nodes else ():
        if pod.node in gpu_nodes or pod.node not in snapshot.nodes or pod.ended or pod.owner.startswith("DaemonSet/"):
            continue
        node = snapshot.nodes[pod.node]
        keys = [str(row.get("key") or "") for row in pod.maps("spec.tolerations")]
        if not any(matching.is_accelerator(key) for key in keys) or matching.uses_accelerators(pod):
            continue
        running = (container for container in pod.containers if not container.init)
        image = next((container for container in running if matching.GPU_IMAGE.search(container.image)), None)
        if image is None or matching.parts_of(pod):
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} tolerates the taint of GPU nodes and runs on {node.name}, which has no GPU: a toleration lets "
                "it in there, it does not bring it there"
            ),
            evidence=(
                pod.cite("spec.tolerations"),
                image.cite("image"),
                image.cite("resources"),
                pod.cite("spec.nodeName"),
            ),
            remedy=(
                Remedy("ask for the GPU in resources.limits (nvidia.com/gpu: 1)"),
                Remedy('or choose the nodes: nodeSelector {}: "true"', names.LABEL_GPU_PRESENT),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
            pods=(pod.path,),
        )


@rule(
    "TNT-07",
    "nfd-master is killed",
    Place.PLUGIN,
    explains=("TNT-05", "DRV-16"),
    rests_on=("NVIDIA/gpu-operator#782", "NVIDIA/gpu-operator#580", "NVIDIA/gpu-operator#2288"),
)
def master_killed(snapshot: Snapshot) -> Iterator[Finding]:
    """When nfd-master restarts, labels may go for a moment; the operator then removes operands, the driver among them,
    from under running pods.
    """
    for pod in matching.pods_of_part(snapshot, NFD_MASTER):
        container = next(
            (
                container
                for container in pod.containers
                if container.end_reason == "OOMKilled" and container.restarts > 0
            ),
            None,
        )
        if container is None:
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} was killed for lack of memory ({container.restarts} restarts): while it is away labels of GPU "
                "nodes can go, and the operator takes their driver down"
            ),
            evidence=(
                container.cite_status("lastState"),
                container.cite_status("restartCount"),
                container.cite("resources"),
            ),
            remedy=(
                Remedy("give it memory, here or in the chart's values:"),
                Remedy(
                    "kubectl -n {} set resources {} nfd-master --limits=memory=4Gi",
                    pod.namespace,
                    pod.owner.split("/")[0].lower() or "deployment",
                ),
                Remedy("if a driver pod hangs since, with its node in place of NODE:"),
                remedies.label("NODE", names.DRIVER_UPGRADE_STATE_LABEL, "upgrade-required", anew=True),
            ),
            confidence=LIKELY,
            nodes=(pod.node,) if pod.node else (),
            pods=(pod.path,),
        )


@rule(
    "TNT-08",
    "Labels of a GPU that is gone",
    Place.PLUGIN,
    explains=("SCH-02", "TNT-16", "DRV-*"),
    rests_on=("NVIDIA/gpu-operator#573", "NVIDIA/gpu-operator#580"),
)
def stale(snapshot: Snapshot) -> Iterator[Finding]:
    """NodeFeature objects outlive the node or card; without nfd-gc labels stay."""
    for node in snapshot.nodes.values():
        host = snapshot.hosts.get(node.name)
        label = matching.pci_label(node)
        if not label or host is None or host.pci is None or any(device.vendor == _PCI for device in host.pci):
            continue
        yield Finding(
            subject=node.subject,
            cause=(
                f"node {node.name} is labelled {label}, and has no such device on its bus: "
                "the label is left from before"
            ),
            evidence=(
                node.cite(f"metadata.labels[{label}]"),
                host.cite("pci", [device.address for device in host.pci]),
            ),
            remedy=(
                Remedy("kubectl get nodefeatures -A | grep {}", node.name),
                Remedy("delete what is old, and restart nfd-worker there"),
                Remedy("turn nfd-gc on (chart value gc.enable)"),
            ),
            confidence=CERTAIN,
            nodes=(node.name,),
        )
    if not snapshot.nodes or not snapshot.knows("NodeFeature"):
        return
    gone = [
        feature
        for feature in snapshot.all("NodeFeature")
        if (name := feature.labels.get(_NFD_NODE)) and name not in snapshot.nodes
    ]
    if gone and not any(pod.ready for pod in matching.pods_of_part(snapshot, matching.NFD_GC)):
        yield Finding(
            subject=gone[0].subject,
            cause=(
                f"{len(gone)} NodeFeatures are of nodes that are gone, and nothing cleans them up: "
                "a new node of such a name gets the old labels"
            ),
            evidence=tuple(feature.cite(f"metadata.labels[{_NFD_NODE}]") for feature in gone[:3]),
            remedy=(
                remedies.delete(gone[0].namespace, "nodefeature", gone[0].name),
                Remedy("turn nfd-gc on (chart value gc.enable)"),
            ),
            confidence=CERTAIN,
            level=Level.NOTE,
        )


@rule(
    "TNT-10",
    "Taints of rules are off",
    Place.PLUGIN,
    rests_on=("kubernetes-sigs/node-feature-discovery, documentation",),
)
def rule_taints(snapshot: Snapshot) -> Iterator[Finding]:
    """nfd-master sets taints of a NodeFeatureRule only with -enable-taints."""
    masters = matching.pods_of_part(snapshot, NFD_MASTER)
    if not masters or _taints_on(snapshot, masters):
        return
    for feature in snapshot.all("NodeFeatureRule"):
        for position, row in enumerate(feature.maps("spec.rules")):
            if row.get("taints"):
                main = next((container for container in masters[0].containers if not container.init), None)
                yield Finding(
                    subject=feature.subject,
                    cause=f"{feature} sets taints, which nfd-master leaves out: it runs without -enable-taints",
                    evidence=(feature.cite(f"spec.rules[{position}].taints"), *((main.cite("args"),) if main else ())),
                    remedy=(
                        Remedy("set master.config.enableTaints: true in the chart's values"),
                        Remedy("first let nfd-worker tolerate these taints"),
                    ),
                    confidence=LIKELY,
                )
                break


def _taints_on(snapshot: Snapshot, masters: list[Pod]) -> bool:
    words = " ".join(word for pod in masters for container in pod.containers for word in container.words)
    if re.search(r"-enable-taints(?:=true)?(?:\s|$)", words):
        return True
    spaces = {pod.namespace for pod in masters}
    texts = (
        str(text)
        for config_map in snapshot.all("ConfigMap")
        if config_map.namespace in spaces
        for text in config_map.map("data").values()
    )
    return any(re.search(r"enableTaints:\s*true", text) for text in texts)


@rule("TNT-13", "The product label lies", Place.PLUGIN, explains=("SCH-08",))
def wrong_product(snapshot: Snapshot) -> Iterator[Finding]:
    """Labels set by hand stay after a card was changed."""
    for node in snapshot.nodes.values():
        host = snapshot.hosts.get(node.name)
        product = node.labels.get(names.LABEL_GPU_PRODUCT, "")
        known = [gpu for gpu in (host.gpus if host else None) or () if gpu.name]
        if host is None or not product or not known or any(_plain(gpu.name) in _plain(product) for gpu in known):
            continue
        yield Finding(
            subject=node.subject,
            cause=(
                f"node {node.name} is labelled as {product}, and its driver says {known[0].name}: "
                "the label was set by hand, or is of another card"
            ),
            evidence=(
                node.cite(f"metadata.labels[{names.LABEL_GPU_PRODUCT}]"),
                host.cite("gpus", [gpu.name for gpu in known]),
            ),
            remedy=(
                remedies.unlabel(node.name, names.LABEL_GPU_PRODUCT),
                Remedy("let gpu-feature-discovery write it: restart its pod on the node"),
            ),
            confidence=LIKELY,
            nodes=(node.name,),
        )


def _plain(name: str) -> str:
    return _WORDS.sub("-", name.lower()).removeprefix("nvidia-").strip("-")


@rule("TNT-16", "Called a GPU node, has no GPU", Place.PLUGIN, explains=("SCH-02",))
def not_a_gpu_node(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia.com/gpu.present was copied by a node template; operands and plugin pods are sent there."""
    for node in snapshot.nodes.values():
        if node.labels.get(names.LABEL_GPU_PRESENT) != "true" or not _bare(snapshot, node):
            continue
        host = snapshot.hosts.get(node.name)
        features = next((key for key in node.labels if key.startswith(names.NFD_PREFIX)), "")
        yield Finding(
            subject=node.subject,
            cause=(
                f"node {node.name} is labelled {names.LABEL_GPU_PRESENT}=true and has no such device: "
                "GPU operands are sent to it for nothing"
            ),
            evidence=(
                node.cite(f"metadata.labels[{names.LABEL_GPU_PRESENT}]"),
                node.cite(f"metadata.labels[{features}]") if features else node.cite("metadata.labels"),
                *((host.cite("pci", []),) if host else ()),
            ),
            remedy=(
                remedies.unlabel(node.name, names.LABEL_GPU_PRESENT),
                Remedy("take the label out of the node template or kubelet flags that set it"),
            ),
            confidence=LIKELY,
            nodes=(node.name,),
        )


def _bare(snapshot: Snapshot, node: Node) -> bool:
    """Whether every source that could have seen a device reports none."""
    if any(_PCI in key for key in node.labels) or any(
        matching.vendor_of(name) == matching.NVIDIA for name in node.resources()
    ):
        return False
    host = snapshot.hosts.get(node.name)
    if host is not None and host.pci is not None:
        return not any(device.vendor == _PCI for device in host.pci)
    # Feature discovery has run and found devices of other vendors, but none of NVIDIA's.
    return any(key.startswith(f"{names.NFD_PREFIX}pci-") for key in node.labels)


RULES: Final = rules_of(
    Sign(
        id="TNT-09",
        title="nfd-master refuses NVIDIA's labels",
        place=Place.PLUGIN,
        where=(LOG,),
        parts=(NFD_MASTER,),
        always=True,
        pattern=r"[Nn]amespace.{0,20}nvidia\.com.{0,40}not allowed|not allowed.{0,200}nvidia\.com/",
        words="not allowed",
        cause="{who} leaves out labels of nvidia.com: its namespaces for labels do not allow them",
        remedy=("start nfd-master with -extra-label-ns=nvidia.com, and without -deny-label-ns=*",),
        explain="Without leave nfd-master writes labels below feature.node.kubernetes.io only.",
        explains=("SCH-08",),
        rests_on=("NVIDIA/gpu-operator#106", "kubernetes-sigs/node-feature-discovery, documentation"),
    ),
    Sign(
        id="TNT-14",
        title="GPU feature discovery can't write its NodeFeature",
        place=Place.PLUGIN,
        where=(LOG, STATUS),
        parts=(GFD,),
        always=True,
        pattern=(
            r"[Rr]equired flag.{0,4}node-name.{0,4}not set|nodefeatures\.nfd\.k8s-sigs\.io.{0,80}forbidden"
            r"|cannot \w+ resource \"nodefeatures\""
        ),
        words="",
        cause="{who} can't write labels: it has no node name or no right to NodeFeatures",
        remedy=(
            "set NODE_NAME from spec.nodeName in its pod",
            (
                "give its ServiceAccount create, get and update on nodefeatures.nfd.k8s-sigs.io, "
                "or set useNodeFeatureAPI=false"
            ),
        ),
        explain="With useNodeFeatureAPI labels go into a NodeFeature object, which needs NODE_NAME and RBAC.",
        confidence=CERTAIN,
        explains=("SCH-08",),
        rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
    ),
)
