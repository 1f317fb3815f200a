"""What the configuration of a GPU stack says, read from its ConfigMaps: MIG layouts, sharing, counters, scrape jobs.

Total: text that can't be read gives nothing here; that it can't be read is another rule's finding.
Read once a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import UserError
from kgpu.base.plain import items, mapping, number, text
from kgpu.doctor import matching
from kgpu.doctor.cluster_policy import in_force
from kgpu.doctor.kinds import Node
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import Evidence
from kgpu.doctor.objects import Obj, plain
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names, yaml
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, find
from kgpu.formats.mig_profile import MigProfile, parse_mig_profile

COUNTER_KEYS: Final = ("metrics", "dcgm-metrics.csv", "default-counters.csv")
"""The keys under which kgpu's exporter takes a counters file; the replaced one knows ``dcgm-metrics.csv`` only."""
_NVIDIAS_MANAGER: Final = "/k8s-mig-manager"
"""In the image of NVIDIA's MIG manager; kgpu's pods of that name have kgpu's."""
PLUGIN_SWITCHES: Final = frozenset({names.LABEL_DEPLOY_OPERANDS, names.LABEL_DEPLOY_PREFIX + "device-plugin"})
"""The labels of a node that keep its device plugin away by ``false``."""

_BROKEN: Final = (UserError, RecursionError, ValueError)


def parsed(value: Any) -> Any:
    """A YAML text's value, None for what is none."""
    if not isinstance(value, str) or not value.strip():
        return None
    try:
        return yaml.load(value)
    except _BROKEN:
        return None


@dataclass(frozen=True, slots=True)
class Layout:
    """One entry of a MIG configuration. ``devices`` None: all of them. ``filtered``: for certain PCI devices only."""

    devices: frozenset[int] | None
    filtered: bool
    enabled: bool
    profiles: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MigConfig:
    """The ConfigMap that the MIG manager is told to use, and the keys under which it looks; ``layouts`` None where it
    finds no such configuration.
    """

    name: str
    told_by: Obj | None
    source: Obj | None
    keys: tuple[str, ...]
    layouts: Mapping[str, tuple[Layout, ...]] | None

    @property
    def key(self) -> str:
        """The key that counts."""
        return mig_key(self.source.map("data") if self.source else {}, self.keys)

    def cite(self) -> Evidence:
        said = ", ".join(self.layouts or ()) or "<none>"
        if self.source is None:
            return Evidence(object=f"ConfigMap {self.name}", value="not there")
        return self.source.cite(f"data[{self.key}]", f"mig-configs: {said}")


def mig_config(snapshot: Snapshot) -> MigConfig:
    """What the MIG manager goes by."""
    return snapshot.once(_mig_config)


def _mig_config(snapshot: Snapshot) -> MigConfig:
    policy = in_force(snapshot)
    told = plain(policy.text("spec.migManager.config.name")) if policy else ""
    name = told or names.MIG_LAYOUTS_MAP
    source = named_map(snapshot, name, matching.MIG_MANAGER)
    data = source.map("data") if source else {}
    keys = mig_keys(snapshot, own=name != names.MIG_LAYOUTS_MAP)
    return MigConfig(name, policy if told else None, source, keys, layouts(data.get(mig_key(data, keys))))


def mig_keys(snapshot: Snapshot, *, own: bool) -> tuple[str, ...]:
    """The keys under which layouts are looked for. In a ConfigMap of the user's ``own``, NVIDIA's manager reads the
    first alone.
    """
    managers = matching.pods_of_part(snapshot, matching.MIG_MANAGER)
    nvidias = any(_NVIDIAS_MANAGER in one.image for pod in managers for one in pod.containers)
    return names.MIG_LAYOUTS_KEYS[:1] if own and nvidias else names.MIG_LAYOUTS_KEYS


def mig_key(data: Mapping[str, Any], keys: tuple[str, ...] = names.MIG_LAYOUTS_KEYS) -> str:
    """The key of a ConfigMap's layouts, by the operator's rule: the first that is there, whatever is in it."""
    return next((key for key in keys if key in data), keys[0])


def named_map(snapshot: Snapshot, name: str, part: str) -> Obj | None:
    """A ConfigMap by its name, in the namespace of a part of the stack where that is known."""
    spaces = dict.fromkeys(
        pod.namespace
        for each in (part, matching.OPERATOR, matching.PLUGIN)
        for pod in matching.pods_of_part(snapshot, each)
    )
    found = [obj for obj in snapshot.all("ConfigMap") if obj.name == name]
    return next((obj for space in spaces for obj in found if obj.namespace == space), found[0] if found else None)


def layouts(data: Any) -> Mapping[str, tuple[Layout, ...]] | None:
    """The configurations of a text by name, None where it is no MIG configuration."""
    said = mapping(parsed(data)).get("mig-configs")
    if not isinstance(said, dict):
        return None
    return {str(name): tuple(_layout(mapping(one)) for one in items(rows)) for name, rows in said.items()}


def _layout(entry: Mapping[str, Any]) -> Layout:
    devices = entry.get("devices")
    listed = frozenset(one for one in items(devices) if isinstance(one, int) and not isinstance(one, bool))
    return Layout(
        listed if isinstance(devices, list) else None,
        bool(entry.get("device-filter")),
        entry.get("mig-enabled") is True,
        {str(name): number(count) for name, count in mapping(entry.get("mig-devices")).items()},
    )


def wanted_mig(node: Node) -> str:
    """The name of the MIG configuration that a node is to have, "" for none."""
    return node.labels.get(names.MIG_CONFIG_LABEL, "")


def mig_state(node: Node) -> str:
    """``pending``, ``rebooting``, ``success``, ``failed``, or ""."""
    return node.labels.get(names.MIG_CONFIG_STATE_LABEL, "")


def mig_strategy(snapshot: Snapshot, node: Node) -> str:
    """``none``, ``single``, ``mixed``, or "" where nobody says."""
    policy = in_force(snapshot)
    return node.labels.get(names.LABEL_MIG_STRATEGY, "") or (policy.text("spec.mig.strategy") if policy else "")


def has_mig(node: Node) -> bool:
    """Whether its resources or its product say that it is cut into slices now."""
    offers = any(matching.is_mig(name) and node.allocatable(name) for name in node.resources())
    return offers or "-MIG-" in node.labels.get(names.LABEL_GPU_PRODUCT, "")


def profile_of(name: str) -> MigProfile | None:
    try:
        return parse_mig_profile(name)
    except UserError:
        return None


def instances(geometry: Geometry, profiles: Mapping[str, int]) -> dict[InstanceProfile, int] | None:
    """How many GPU instances a layout's profiles need at least; None where one is no name, or of another card.

    Compute instances share a GPU instance as long as it has slices for them.
    """
    counts: dict[InstanceProfile, int] = {}
    shared: dict[InstanceProfile, int] = {}
    for name, count in profiles.items():
        profile = profile_of(name)
        instance = find(geometry, profile) if profile is not None else None
        if profile is None or instance is None:
            return None
        if profile.whole:
            counts[instance] = counts.get(instance, 0) + max(0, count)
        else:
            shared[instance] = shared.get(instance, 0) + profile.c * max(0, count)
    for instance, slices in shared.items():
        counts[instance] = counts.get(instance, 0) - (-slices // instance.slices)
    return counts


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """A device plugin's configuration with a block of sharing: where it stands, and its tree."""

    source: Obj
    key: str
    tree: Mapping[str, Any]

    def block(self, kind: str) -> list[Mapping[str, Any]]:
        """The entries of ``timeSlicing`` or ``mps`` that share anything."""
        rows = items(mapping(mapping(self.tree.get("sharing")).get(kind)).get("resources"))
        return [mapping(row) for row in rows if mapping(row)]

    def cite(self, kind: str) -> Evidence:
        said = ", ".join(f"{text(row.get('name'))} x {row.get('replicas')}" for row in self.block(kind))
        return self.source.cite(f"data[{self.key}] sharing.{kind}.resources", said)


def sharing_configs(snapshot: Snapshot) -> list[SharingConfig]:
    """All of them, whether a node uses them or not."""
    return snapshot.once(_sharing_configs)


def _sharing_configs(snapshot: Snapshot) -> list[SharingConfig]:
    found = []
    for obj in snapshot.all("ConfigMap"):
        for key, value in obj.map("data").items():
            if isinstance(value, str) and "sharing:" in value and "replicas" in value:
                tree = mapping(parsed(value))
                if mapping(tree.get("sharing")):
                    found.append(SharingConfig(obj, str(key), tree))
    return found


def uses_mps(snapshot: Snapshot, node: str) -> bool:
    """Whether MPS is meant to work on a node: its labels or a daemon's pod there say so."""
    obj = snapshot.nodes.get(node)
    labels = obj.labels if obj else {}
    said = labels.get(names.LABEL_MPS_CAPABLE) == "true" or labels.get(names.LABEL_GPU_SHARING_STRATEGY) == "mps"
    return said or bool(matching.pods_of_part(snapshot, matching.MPS, node=node))


def replicas_of(node: Node) -> int:
    """How many shares each of its GPUs has, by its label."""
    said = node.labels.get(names.LABEL_GPU_REPLICAS, "")
    return int(said) if said.isdecimal() and len(said) < 6 else 1


def cards_of(node: Node) -> int:
    """How many GPUs it has, by its label; 0 where that counts slices or says nothing."""
    said = node.labels.get(names.LABEL_GPU_COUNT, "")
    return int(said) if said.isdecimal() and len(said) < 6 and not has_mig(node) else 0


def is_time_sliced(snapshot: Snapshot, node: Node | None) -> bool:
    """Whether a node's GPUs are given to several containers by time-slicing."""
    if node is None or uses_mps(snapshot, node.name):
        return False
    shared = any(matching.is_shared(name) and node.allocatable(name) for name in node.resources())
    return shared or replicas_of(node) > 1 or node.labels.get(names.LABEL_GPU_SHARING_STRATEGY) == "time-slicing"


def still_broken(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """A proof for what keeps a plugin from offering anything: None where it is ready and its node has devices again."""
    node = snapshot.nodes.get(hit.node)
    resources = node.resources() if node else ()
    offers = node and any(matching.is_accelerator(name) and node.allocatable(name) for name in resources)
    return None if hit.pod is not None and hit.pod.ready and offers else ()


@dataclass(frozen=True, slots=True)
class CounterFile:
    """The counters file that exporters are told to use. ``key`` is "" where the ConfigMap has none."""

    name: str
    told_by: Obj
    source: Obj | None
    key: str
    lines: tuple[str, ...]

    def names(self) -> frozenset[str]:
        """The fields that it asks for."""
        rows = (line.split(",", 1)[0].strip() for line in self.lines)
        return frozenset(row for row in rows if row and not row.startswith("#"))


def counter_file(snapshot: Snapshot) -> CounterFile | None:
    """None where the exporters have their own usual set, or nobody knows."""
    for policy in snapshot.all("ClusterPolicy"):
        name = plain(policy.text("spec.dcgmExporter.config.name"))
        if not name or policy.at("spec.dcgmExporter.enabled") is False:
            continue
        source = named_map(snapshot, name, matching.EXPORTER)
        data = source.map("data") if source else {}
        key = next((file_key for file_key in COUNTER_KEYS if isinstance(data.get(file_key), str)), "")
        return CounterFile(name, policy, source, key, tuple(text(data.get(key)).splitlines()))
    return None


def scrape_jobs(snapshot: Snapshot) -> Iterator[tuple[Obj, str, Mapping[str, Any]]]:
    """The jobs of Prometheus configurations in ConfigMaps: where they stand, and each job."""
    for obj in snapshot.all("ConfigMap"):
        for key, value in obj.map("data").items():
            if not isinstance(value, str) or "job_name" not in value:
                continue
            tree = parsed(value)
            rows = tree if isinstance(tree, list) else mapping(tree).get("scrape_configs")
            for row in items(rows):
                if isinstance(row, dict) and text(row.get("job_name")):
                    yield obj, str(key), row


def plugin_off(snapshot: Snapshot) -> Mapping[str, Obj]:
    """By the name of a node of NVIDIA's on which nothing is offered because its device plugin is switched off: what has
    the switch, a ClusterPolicy or the node itself. Another plugin's pod there may have any other fault.
    """
    return snapshot.once(_plugin_off)


def _plugin_off(snapshot: Snapshot) -> dict[str, Obj]:
    policies = (policy for policy in snapshot.all("ClusterPolicy") if policy.text("status.state") != "ignored")
    off = next((policy for policy in policies if policy.at("spec.devicePlugin.enabled") is False), None)
    switches: dict[str, Obj] = {}
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        switch = node if any(node.labels.get(key) == "false" for key in PLUGIN_SWITCHES) else off
        offers = any(
            node.allocatable(resource)
            for resource in node.resources()
            if matching.vendor_of(resource) == matching.NVIDIA
        )
        pods = matching.pods_of_part(snapshot, matching.PLUGIN, vendor=matching.NVIDIA, node=node.name)
        if switch is not None and not offers and all(pod.ended or pod.deleting for pod in pods):
            switches[node.name] = switch
    return switches
