"""Rows TS about sharing that is configured and not in force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import number, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies, smallest_change
from kgpu.doctor.kinds import Node, Pod, mounted_config_maps
from kgpu.doctor.matching import PLUGIN
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Finding, Level, Place
from kgpu.doctor.objects import Obj, plain
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import (
    SharingConfig,
    cards_of,
    named_map,
    replicas_of,
    sharing_configs,
    uses_mps,
)
from kgpu.doctor.unread_configs import unread
from kgpu.doctor.waiting import RESOURCES, waiting
from kgpu.formats import names

_COUNT: Final = names.LABEL_GPU_COUNT
_CA: Final = "kube-root-ca.crt"  # is in every namespace
_RELOAD: Final = "the plugin reads its configuration when it starts"


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The device plugin's configuration that a ClusterPolicy names."""

    policy: Obj
    name: str
    default: str
    source: Obj | None

    def key(self, node: Node) -> str:
        """The key of the configuration that a node uses: its label, else the default."""
        return node.labels.get(names.DEVICE_PLUGIN_CONFIG_LABEL, "") or self.default


def _policy_configs(snapshot: Snapshot) -> list[PolicyConfig]:
    configs = []
    for policy in snapshot.all("ClusterPolicy"):
        name = plain(policy.text("spec.devicePlugin.config.name"))
        if name:
            default = plain(policy.text("spec.devicePlugin.config.default"))
            configs.append(PolicyConfig(policy, name, default, named_map(snapshot, name, PLUGIN)))
    return configs


def _offered(node: Node) -> int:
    return sum(node.capacity(name) or 0 for name in (names.GPU_RESOURCE, names.GPU_RESOURCE + names.SHARED_SUFFIX))


@rule(
    "TS-01",
    "The change was not taken over",
    Place.PLUGIN,
    explains=("DPL-23", "SCH-01", "SCH-04"),
    rests_on=("NVIDIA/gpu-operator#1144",),
)
def not_taken_over(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugin reads its configuration when it starts; the operator does not watch the ConfigMap."""
    for policy_config in _policy_configs(snapshot):
        by_key = {
            config.key: config
            for config in sharing_configs(snapshot)
            if policy_config.source and config.source.key == policy_config.source.key
        }
        hit = [
            row
            for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
            if (row := _behind(snapshot, policy_config, by_key, node))
        ]
        if not hit:
            continue
        node, config, wanted, pod = hit[0]
        daemon = pod.owner.partition("/")[2] or "nvidia-device-plugin-daemonset"
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{config.source} gives node {node.name} {wanted} shares for {cards_of(node)} GPUs, and it offers "
                f"{_offered(node)}: {pod} has not taken the change over"
            ),
            evidence=(
                config.cite("timeSlicing"),
                node.cite(f"status.capacity[{names.GPU_RESOURCE}]"),
                node.cite(f"metadata.labels[{_COUNT}]"),
                pod.cite("status.startTime"),
            ),
            remedy=(
                remedies.restart_daemonset(pod.namespace, daemon).why(_RELOAD),
                remedies.node_field(node.name, "status.allocatable"),
            ),
            confidence=LIKELY,
            nodes=tuple(row[0].name for row in hit),
        )


def _behind(
    snapshot: Snapshot, policy_config: PolicyConfig, by_key: dict[str, SharingConfig], node: Node
) -> tuple[Node, SharingConfig, int, Pod] | None:
    config, cards = by_key.get(policy_config.key(node)), cards_of(node)
    pods = [pod for pod in matching.pods_of_part(snapshot, PLUGIN, node=node.name) if pod.ready]
    if config is None or not cards or not pods or not _offered(node) or uses_mps(snapshot, node.name):
        return None
    rows = [row for row in config.block("timeSlicing") if text(row.get("name")) in (names.GPU_RESOURCE, "gpu")]
    if len(rows) != 1 or rows[0].get("devices") not in (None, "all") or rows[0].get("rename"):
        return None
    wanted = cards * max(number(rows[0].get("replicas"), 1), 1)
    return None if wanted == _offered(node) else (node, config, wanted, pods[0])


@rule(
    "TS-02",
    "The ConfigMap is not there",
    Place.PLUGIN,
    explains=("SCH-02", "DPL-03", "DPL-16"),
    rests_on=("NVIDIA/gpu-operator#412", "NVIDIA/k8s-device-plugin#990", "NVIDIA/k8s-device-plugin#615"),
)
def no_such_map(snapshot: Snapshot) -> Iterator[Finding]:
    """spec.devicePlugin.config.name has to be a ConfigMap in the operator's namespace; plugin pods wait for it in
    ContainerCreating.
    """
    for policy_config in _policy_configs(snapshot):
        if policy_config.source is not None or not snapshot.knows("ConfigMap"):
            continue
        spaces = _spaces(snapshot)
        stuck = [pod for pod in matching.pods_of_part(snapshot, PLUGIN) if not pod.ready]
        events = [
            event.quote() for pod in stuck for event in snapshot.events(pod) if policy_config.name in event.message
        ][:1]
        near = smallest_change.nearest(
            policy_config.name, (config.source.name for config in sharing_configs(snapshot))
        ) or smallest_change.nearest(
            policy_config.name,
            (
                config_map.name
                for config_map in snapshot.all("ConfigMap")
                if config_map.namespace in spaces and config_map.name != _CA
            ),
        )
        make = Remedy("kubectl -n {} create configmap {} --from-file=any=config.yaml", spaces[0], policy_config.name)
        yield Finding(
            subject=policy_config.policy.subject,
            cause=(
                f"{policy_config.policy} names ConfigMap {policy_config.name} for the device plugin, and "
                "there is none of that name"
            )
            + (f"; did you mean {near}?" if near else ""),
            evidence=(policy_config.policy.cite("spec.devicePlugin.config"), *events),
            remedy=(_patched(policy_config.policy, "name", near), Remedy("or make it:"), make) if near else (make,),
            confidence=CERTAIN,
            nodes=tuple(node.name for node in matching.gpu_nodes(snapshot, matching.NVIDIA)),
            pods=tuple(pod.path for pod in stuck),
        )  # fmt: skip


def _spaces(snapshot: Snapshot) -> list[str]:
    """The namespaces in which the stack looks for its ConfigMaps, the likeliest first."""
    parts = (PLUGIN, matching.AGENT, matching.OPERATOR)
    namespaces = dict.fromkeys(pod.namespace for part in parts for pod in matching.pods_of_part(snapshot, part))
    return list(namespaces) or ["gpu-operator"]


def _patched(policy: Obj, field: str, value: str) -> Remedy:
    return remedies.patch_policy(policy.name, {"spec": {"devicePlugin": {"config": {field: value}}}})


@rule(
    "TS-03",
    "A configuration that no node uses",
    Place.PLUGIN,
    explains=("SCH-01",),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def no_default(snapshot: Snapshot) -> Iterator[Finding]:
    """Without a default only nodes with the label nvidia.com/device-plugin.config use a configuration."""
    for policy_config in _policy_configs(snapshot):
        nodes = matching.gpu_nodes(snapshot, matching.NVIDIA)
        if (
            policy_config.source is None
            or policy_config.default
            or not nodes
            or any(policy_config.key(node) for node in nodes)
        ):
            continue
        keys = [str(key) for key, content in policy_config.source.map("data").items() if _does_something(content)]
        if not keys or any(replicas_of(node) > 1 for node in nodes):
            continue
        shares = any(
            "timeSlicing" in str(content) or "mps" in str(content)
            for content in policy_config.source.map("data").values()
        )
        yield Finding(
            subject=policy_config.policy.subject,
            cause=(
                f"{policy_config.source} ({', '.join(keys[:4])}) is used by no node: {policy_config.policy} has no "
                f"default, and no node is labelled {names.DEVICE_PLUGIN_CONFIG_LABEL}"
            ),
            evidence=(
                policy_config.policy.cite("spec.devicePlugin.config"),
                nodes[0].cite(f"metadata.labels[{names.DEVICE_PLUGIN_CONFIG_LABEL}]"),
                policy_config.source.cite("data", keys),
            ),
            remedy=(
                _patched(policy_config.policy, "default", keys[0]),
                Remedy("or for one node:"),
                remedies.label(nodes[0].name, names.DEVICE_PLUGIN_CONFIG_LABEL, keys[0]),
            ),
            confidence=CERTAIN,
            # An unused configuration may be left from before a return to whole GPUs; only where pods wait may they
            # need it.
            level=Level.PROBLEM if shares and _would_share(snapshot) else Level.NOTE,
            nodes=tuple(node.name for node in nodes),
        )


def _does_something(content: object) -> bool:
    """Whether a configuration sets anything besides its version."""
    lines = (line.partition("#")[0].strip() for line in str(content).splitlines())
    return any(line and line != "---" and not line.startswith("version:") for line in lines)


@rule(
    "TS-04",
    "A configuration that the policy does not name",
    Place.PLUGIN,
    explains=("SCH-01",),
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source", "NVIDIA/gpu-operator v26.7.0, source"),
)
def not_named(snapshot: Snapshot) -> Iterator[Finding]:
    """A ConfigMap alone does nothing. On a fresh chart the path /spec/devicePlugin/config does not exist, so that a
    JSON patch with replace fails.
    """
    # Pods wait, and the policy does not name the configuration that shares GPUs. A policy that was changed since it
    # was created may have named it before, and somebody went back to whole GPUs on purpose.
    hurt = _would_share(snapshot)
    yield from unread(snapshot, hurt)
    policies = [
        policy for policy in snapshot.all("ClusterPolicy") if hurt and not policy.map("spec.devicePlugin.config")
    ]
    plugins = matching.pods_of_part(snapshot, PLUGIN)
    spaces = {pod.namespace for pod in (*plugins, *matching.pods_of_part(snapshot, matching.OPERATOR))}
    mounted = frozenset[str]().union(*map(mounted_config_maps, plugins))
    for config in sharing_configs(snapshot) if policies else ():
        if config.source.namespace not in spaces or config.source.name in mounted:
            continue
        named = {"name": config.source.name, "default": config.key}
        changed = policies[0].number("metadata.generation", 1) > 1
        yield Finding(
            subject=policies[0].subject,
            cause=(
                f"{config.source} configures sharing, and {policies[0]} does not name it: "
                "spec.devicePlugin.config is not there"
            )
            + ("; where whole GPUs are wanted again, nothing is wrong" if changed else ""),
            evidence=(
                config.cite("timeSlicing" if config.block("timeSlicing") else "mps"),
                policies[0].cite("spec.devicePlugin.config"),
                *((policies[0].cite("metadata.generation"),) if changed else ()),
            ),
            remedy=(
                remedies.patch_policy(policies[0].name, {"spec": {"devicePlugin": {"config": named}}}),
                Remedy("use a merge patch: a JSON patch with replace fails where the path is not there yet"),
                *(
                    (
                        Remedy("where whole GPUs are wanted:"),
                        remedies.delete(config.source.namespace, "configmap", config.source.name),
                    )
                    if changed
                    else ()
                ),
            ),
            confidence=POSSIBLE if changed else LIKELY,
            level=Level.NOTE if changed else Level.PROBLEM,
            pods=hurt,
        )
        return


def _would_share(snapshot: Snapshot) -> tuple[str, ...]:
    """The waiting pods that shares might help: too few GPUs are all that is wrong on some node.

    Not pods that want more GPUs at once than the node has: shares do not add GPUs.
    """
    return tuple(
        pod.path
        for pending in waiting(snapshot)
        if pending.resource.startswith(names.GPU_RESOURCE) and not pending.fits
        if any(
            not 0 < (node.allocatable(pending.resource) or 0) < pending.wanted
            for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
            if node.name in pending.only(RESOURCES, pending.resource)
        )
        for pod in pending.pods
    )


@rule(
    "TS-13",
    "A label or the default names no configuration",
    Place.PLUGIN,
    explains=("SCH-01", "DPL-16"),
    also=("TS-15",),
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
)
def wrong_key(snapshot: Snapshot) -> Iterator[Finding]:
    """Per-node configurations need one key of the ConfigMap for each value of nvidia.com/device-plugin.config, and so
    does spec.devicePlugin.config.default for all other nodes.
    """
    for policy_config in _policy_configs(snapshot):
        keys = sorted(str(key) for key in policy_config.source.map("data")) if policy_config.source else []
        if policy_config.source is not None and policy_config.default and policy_config.default not in keys:
            yield _wrong_default(snapshot, policy_config, policy_config.source, keys)
        for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
            label = node.labels.get(names.DEVICE_PLUGIN_CONFIG_LABEL, "")
            if policy_config.source is None or not label or label in keys:
                continue
            near = smallest_change.nearest(label, keys)
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} is labelled {names.DEVICE_PLUGIN_CONFIG_LABEL}={label}, and "
                    f"{policy_config.source} has "
                    f"only {', '.join(keys) or 'nothing'}: the plugin there keeps what it had"
                ),
                evidence=(
                    node.cite(f"metadata.labels[{names.DEVICE_PLUGIN_CONFIG_LABEL}]"),
                    policy_config.source.cite("data", keys),
                ),
                remedy=(
                    remedies.labels(
                        node.name, f"{names.DEVICE_PLUGIN_CONFIG_LABEL}={near or (keys[0] if keys else 'KEY')}"
                    ),
                    Remedy("or add the key {} to {}", label, policy_config.source),
                ),
                confidence=CERTAIN,
                nodes=(node.name,),
            )


def _wrong_default(snapshot: Snapshot, policy_config: PolicyConfig, source: Obj, keys: list[str]) -> Finding:
    near = smallest_change.nearest(policy_config.default, keys)
    nodes = [
        node
        for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
        if policy_config.key(node) == policy_config.default
    ]
    return Finding(
        subject=policy_config.policy.subject,
        cause=(
            f"{policy_config.policy} chooses the configuration {policy_config.default} by default, and {source} has "
            f"only {', '.join(keys) or 'nothing'}"
        )
        + (f"; did you mean {near}?" if near else "")
        + (
            f": the plugin keeps what it had on {len(nodes)} nodes"
            if len(nodes) > 1
            else f": the plugin of node {nodes[0].name} keeps what it had"
            if nodes
            else ""
        ),
        evidence=(policy_config.policy.cite("spec.devicePlugin.config"), source.cite("data", keys)),
        remedy=(
            _patched(policy_config.policy, "default", near or (keys[0] if len(keys) == 1 else "KEY")),
            Remedy("or add the key {} to {}", policy_config.default, source),
        ),
        confidence=CERTAIN,
        nodes=tuple(node.name for node in nodes),
    )


@rule(
    "TS-12",
    "Sharing for the wrong resource",
    Place.PLUGIN,
    explains=("TS-01",),
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, documentation",),
)
def other_resource(snapshot: Snapshot) -> Iterator[Finding]:
    """With MIG strategy mixed the slices have names of their own, and sharing has to name them."""
    for policy_config in _policy_configs(snapshot):
        by_key = {
            config.key: config
            for config in sharing_configs(snapshot)
            if policy_config.source and config.source.key == policy_config.source.key
        }
        for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
            config = by_key.get(policy_config.key(node))
            slices = sorted(name for name in node.resources() if matching.is_mig(name) and node.allocatable(name))
            rows = {text(row.get("name")) for row in config.block("timeSlicing")} if config else set()
            if config is None or not slices or node.allocatable(names.GPU_RESOURCE) or rows != {names.GPU_RESOURCE}:
                continue
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} offers {', '.join(slices[:3])}, and its sharing configuration {config.key} is "
                    f"for {names.GPU_RESOURCE}: nothing is shared"
                ),
                evidence=(config.cite("timeSlicing"), node.cite(f"status.allocatable[{slices[0]}]")),
                remedy=(
                    Remedy(
                        "name the slices in {}, key {}: sharing.timeSlicing.resources: [{{name: {}, replicas: 2}}]",
                        config.source,
                        config.key,
                        slices[0],
                    ),
                ),
                confidence=CERTAIN,
                nodes=(node.name,),
            )
