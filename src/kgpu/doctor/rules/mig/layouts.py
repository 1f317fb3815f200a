"""Rows MIG: layouts that were asked for, and what came of them. Rows known by a sentence are in ``sentences.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any, Final

from kgpu.base.remedy import Remedy
from kgpu.base.suggest import did_you_mean
from kgpu.doctor import cluster_policy, matching, remedies, stack_config
from kgpu.doctor.kinds import Node
from kgpu.doctor.matching import MIG_MANAGER, VALIDATOR
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.mig.sentences import layout_said
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import (
    Layout,
    has_mig,
    mig_config,
    mig_state,
    profile_of,
    wanted_mig,
)
from kgpu.formats import names
from kgpu.formats.mig_geometry import Geometry, InstanceProfile, find, fits, geometry_of
from kgpu.formats.support import MIG_BROKEN_DRIVERS, MIG_FIXED_DRIVER

_LABEL: Final = names.MIG_CONFIG_LABEL
_ABOVE: Final = ("SCH-01", "SCH-02", "SCH-05", "SCH-06", "SCH-14", "DPL-01", "DPL-03", "TNT-03")


def _of_node(
    node: Node, cause: str, evidence: tuple[Evidence, ...], remedy: tuple[Remedy, ...], **more: Any
) -> Finding:
    usual = {"subject": node.subject, "confidence": CERTAIN, "nodes": (node.name,)}
    return Finding(cause=cause, evidence=evidence, remedy=remedy, **{**usual, **more})


def _cite(node: Node, label: str) -> Evidence:
    return node.cite(f"metadata.labels[{label}]")


def _relabel(node: Node, name: str) -> Remedy:
    """The command that gives a node a layout: the MIG manager acts when the label changes, not when it is set again."""
    if wanted_mig(node) != name:
        return remedies.label(node.name, _LABEL, name, anew=True)
    return remedies.relabel(node.name, _LABEL, name)


def _chosen(snapshot: Snapshot) -> Iterator[tuple[Node, str, tuple[Layout, ...]]]:
    """Nodes with the name and rows of the layout that they ask for, where the configuration has it."""
    known = mig_config(snapshot).layouts or {}
    for node in snapshot.nodes.values():
        name = wanted_mig(node)
        if name in known:
            yield node, name, known[name]


def _valid(node: Node, rows: tuple[Layout, ...]) -> bool:
    """Whether a layout can be for a node's cards, judged by the product label."""
    geometry = geometry_of(node.labels.get(names.LABEL_GPU_PRODUCT, ""))
    cut = [row for row in rows if row.enabled and row.profiles]
    return geometry is None or not cut or any(not _foreign(row, geometry) for row in cut)


def _foreign(row: Layout, geometry: Geometry) -> list[str]:
    """The profiles of a layout that a card of this geometry does not have."""
    named = {name: profile_of(name) for name in row.profiles}
    return [name for name, profile in named.items() if profile is not None and find(geometry, profile) is None]


@rule(
    "MIG-01",
    "A MIG layout that does not exist",
    Place.CLUSTER,
    explains=(*_ABOVE, "MIG-11"),
    rests_on=("NVIDIA/mig-parted v0.15.0, source",),
)
def unknown_layout(snapshot: Snapshot) -> Iterator[Finding]:
    """The label nvidia.com/mig.config names an entry under mig-configs of the MIG manager's ConfigMap. A name that is
    not there, as by a slip or of another card, ends in the state failed.
    """
    config = mig_config(snapshot)
    if config.layouts is None:
        yield from layout_said(snapshot)
        return
    for node in snapshot.nodes.values():
        name = wanted_mig(node)
        if not name or name in config.layouts or mig_state(node) in ("success", ""):
            continue
        fitting = [each for each, rows in config.layouts.items() if _valid(node, rows)]
        near = did_you_mean(name, fitting)
        yield _of_node(
            node,
            f"node {node.name} is to have the MIG layout {name}, "
            f"which ConfigMap {config.name} does not have{near and f' ({near})'}",
            (_cite(node, _LABEL), _cite(node, names.MIG_CONFIG_STATE_LABEL), config.cite()),
            (
                Remedy("NAME is one of: {}", ", ".join(fitting[:20])),
                _relabel(node, fitting[0] if len(fitting) == 1 else "NAME"),
            ),
        )


@rule(
    "MIG-03",
    "MIG mode waits for a reboot",
    Place.DRIVER,
    explains=(*_ABOVE, "MIG-02"),
    rests_on=("NVIDIA/gpu-operator#2376", "NVIDIA/mig-parted#157", "NVIDIA/mig-parted#357"),
)
def reboot_wanted(snapshot: Snapshot) -> Iterator[Finding]:
    """Changing the mode needs a reset of the GPU, which is not possible in a virtual machine with a passed-through
    card: the pending mode becomes the current one with the next boot.
    """
    for host in snapshot.hosts.values():
        waits = [gpu for gpu in host.gpus or () if gpu.mig_enabled != gpu.mig_pending]
        node = snapshot.nodes.get(host.node)
        if not waits or host.hypervisor is not True or node is None or mig_state(node) in ("pending", "rebooting"):
            continue
        modes = ", ".join(f"GPU {gpu.index}: now {gpu.mig_enabled}, pending {gpu.mig_pending}" for gpu in waits)
        yield _of_node(
            node,
            f"the MIG mode of {len(waits)} GPUs of node {node.name} waits for a reboot: it is a virtual machine, "
            "where a GPU can't be reset",
            (host.cite("gpus", modes), host.cite("hypervisor")),
            (
                *remedies.reboot(node.name),
                Remedy("for the next time: WITH_REBOOT=true in migManager.env of the ClusterPolicy"),
            ),
        )


@rule(
    "MIG-04",
    "A card without MIG",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("NVIDIA/mig-parted v0.15.0, source",),
)
def not_capable(snapshot: Snapshot) -> Iterator[Finding]:
    """T4, V100, A10, A40, L4, L40 and RTX cards have no MIG; a layout for all devices fails on them."""
    for node, name, rows in _chosen(snapshot):
        if node.labels.get(names.LABEL_MIG_CAPABLE) != "false" or mig_state(node) in ("success", ""):
            continue
        if any(row.enabled and row.devices is None and not row.filtered for row in rows):
            yield _of_node(
                node,
                f"node {node.name} is to have the MIG layout {name}, and its cards "
                f"({matching.product(node) or 'of this product'}) can't do MIG",
                (_cite(node, _LABEL), _cite(node, names.LABEL_MIG_CAPABLE), _cite(node, names.MIG_CONFIG_STATE_LABEL)),
                (
                    remedies.unlabel(node.name, _LABEL),
                    Remedy("or give the entries of that layout a device-filter"),
                ),
            )


@rule(
    "MIG-05",
    "A MIG layout that leaves GPUs out",
    Place.CLUSTER,
    explains=_ABOVE,
    rests_on=("NVIDIA/mig-parted#157",),
)
def partial(snapshot: Snapshot) -> Iterator[Finding]:
    """The layout is applied and checked for the whole node: every GPU needs an entry, also one with
    mig-enabled: false.
    """
    for node, name, rows in _chosen(snapshot):
        count = _count(snapshot, node)
        if not rows or count is None or any(row.devices is None for row in rows):
            continue
        covered = {index for row in rows for index in row.devices or ()}
        left = sorted(set(range(count)) - covered)
        if left and mig_state(node) != "success":
            yield _of_node(
                node,
                f"the MIG layout {name} of node {node.name} says nothing of GPU {', '.join(map(str, left))}: "
                "a layout has to name every GPU",
                (
                    _cite(node, _LABEL),
                    mig_config(snapshot).cite(),
                    Evidence(object=str(node), field="GPUs", value=str(count)),
                ),
                (
                    Remedy(
                        "add to {} in ConfigMap {}: - {{devices: {}, mig-enabled: false}}",
                        name,
                        mig_config(snapshot).name,
                        left,
                    ),
                    _relabel(node, name),
                ),
            )


def _count(snapshot: Snapshot, node: Node) -> int | None:
    """How many cards a node has; the label counts slices under strategy single."""
    host = snapshot.hosts.get(node.name)
    if host is not None and host.gpus:
        return len(host.gpus)
    label = node.labels.get(names.LABEL_GPU_COUNT, "")
    return int(label) if label.isdecimal() and len(label) < 4 and not has_mig(node) else None


@rule(
    "MIG-09",
    "A driver that loses MIG devices",
    Place.DRIVER,
    explains=(*_ABOVE, "RUN-*"),
    facts={"drivers": ", ".join(sorted(MIG_BROKEN_DRIVERS))},
    rests_on=("NVIDIA/gpu-operator#1361", "NVIDIA GPU Operator documentation: troubleshooting, release notes"),
)
def broken_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """NVML of drivers {drivers} does not list MIG devices rightly where pods with slices and with whole GPUs run
    together. They stay Pending or in ContainerCreating.
    """
    for node in snapshot.nodes.values():
        host = snapshot.hosts.get(node.name)
        label = f"{names.LABEL_CUDA_DRIVER_VERSION}.full"
        version = node.labels.get(label, "") or (host.driver_version if host else "")
        cut = has_mig(node) or any(gpu.mig_enabled for gpu in (host.gpus if host else None) or ())
        if version in MIG_BROKEN_DRIVERS and cut:
            pods = [
                p for p in snapshot.pods_by_node.get(node.name, ()) if p.phase == "Pending" and matching.accelerators(p)
            ]
            yield _of_node(
                node,
                f"node {node.name} has MIG on and driver {version}, which loses MIG devices: "
                "pods with slices beside pods with whole GPUs hang",
                (
                    _cite(node, label)
                    if label in node.labels
                    else (host.cite("driver_version") if host else _cite(node, label)),
                    *(p.cite("status.phase") for p in pods[:2]),
                ),
                (
                    Remedy(
                        "go to driver {} or later (570.172.08 or later within 570, or back to 570.86.15):",
                        MIG_FIXED_DRIVER,
                    ),
                    cluster_policy.change(snapshot, {"driver": {"version": MIG_FIXED_DRIVER}}),
                ),
                pods=tuple(p.path for p in pods),
            )


@rule(
    "MIG-10",
    "The validator wants a whole GPU",
    Place.PLUGIN,
    explains=("SCH-06", "SCH-01"),
    rests_on=("NVIDIA/gpu-operator#1738",),
)
def validator_whole(snapshot: Snapshot) -> Iterator[Finding]:
    """Under strategy mixed a node that is all slices offers no nvidia.com/gpu, which older validators ask for."""
    for pod in matching.pods_of_part(snapshot, VALIDATOR):
        resources = matching.accelerators(pod)
        node = snapshot.nodes.get(pod.node) or next(
            (
                node
                for node in snapshot.nodes.values()
                if node.name == pod.text("spec.nodeSelector[kubernetes.io/hostname]")
            ),
            None,
        )
        if node is None or pod.ready or pod.ended or names.GPU_RESOURCE not in resources:
            continue
        slices = sorted(name for name in node.resources() if matching.is_mig(name) and node.allocatable(name))
        if slices and not node.allocatable(names.GPU_RESOURCE):
            yield _of_node(
                node,
                f"{pod} asks for nvidia.com/gpu, and node {node.name} has slices only ({', '.join(slices)})",
                (
                    pod.cite("status.phase"),
                    node.cite(f"status.allocatable[{slices[0]}]"),
                    node.cite("status.allocatable[nvidia.com/gpu]"),
                ),
                (
                    Remedy(
                        "take a newer operator, whose validator asks for a slice; workloads on slices work as they are"
                    ),
                    Remedy("or WITH_WORKLOAD=false in validator.cuda.env of the ClusterPolicy"),
                ),
                subject=pod.subject,
                pods=(pod.path,),
                confidence=LIKELY,
            )


@rule(
    "MIG-11",
    "Parts still paused for MIG",
    Place.CLUSTER,
    explains=_ABOVE,
    rests_on=("NVIDIA/gpu-operator#1309",),
)
def left_paused(snapshot: Snapshot) -> Iterator[Finding]:
    """The MIG manager stops the other parts by labels before it changes a layout, and sets them back afterwards; when
    it ends before that, they stay away.
    """
    for node in snapshot.nodes.values():
        paused = sorted(
            key
            for key, value in node.labels.items()
            if names.PAUSED_FOR_MIG_CHANGE in value and key.startswith(names.LABEL_DEPLOY_PREFIX)
        )
        gave_up = _gave_up(snapshot, node) if paused else ()
        if not paused or not (gave_up or mig_state(node) in ("success", "failed")):
            continue
        wanted = node.labels.get(names.MIG_CONFIG_LABEL, "")
        # The manager acts when the label changes: the same value once more is no change.
        again = (_relabel(node, wanted),) if gave_up and wanted else ()
        how = "has failed, and the MIG manager waits for another one" if gave_up else f"has ended ({mig_state(node)})"
        yield _of_node(
            node,
            f"the change of MIG layout on node {node.name} {how}, "
            f"and {len(paused)} parts of the stack are still paused for it",
            (*gave_up, *(_cite(node, key) for key in paused[:3]), _cite(node, names.MIG_CONFIG_STATE_LABEL)),
            (
                remedies.labels(node.name, *(f"{key}=true" for key in paused)),
                *again,
                *_log_step(snapshot, node),
            ),
        )


_WAITS: Final = re.compile(r"Waiting for change to '?nvidia\.com/mig\.config")
_ENDED: Final = re.compile(r"Error: |error: timed out|exit status [1-9]")


def _gave_up(snapshot: Snapshot, node: Node) -> tuple[Evidence, ...]:
    """The last errors of a MIG manager that has failed and waits for the label to change; () while it is at work."""
    for pod in matching.pods_of_part(snapshot, MIG_MANAGER, node=node.name):
        for log in snapshot.logs_of(pod):
            lines = [at for at, line in enumerate(log.lines) if line.strip()]
            if log.previous or not lines or not _WAITS.search(log.lines[lines[-1]]):
                continue
            failed = next((at for at in reversed(lines[:-1]) if _ENDED.search(log.lines[at])), None)
            begun = next((at for at in reversed(lines[:-1]) if "Updating to MIG config" in log.lines[at]), -1)
            if failed is not None and failed > begun:
                failures = [at for at in lines if begun < at <= failed and _ENDED.search(log.lines[at])]
                return tuple(log.cite(at) for at in failures[:2])
    return ()


def _log_step(snapshot: Snapshot, node: Node) -> tuple[Remedy, ...]:
    pods = matching.pods_of_part(snapshot, MIG_MANAGER, node=node.name)
    return (remedies.logs(pods[0].namespace, pods[0].name, "--tail=50"),) if pods else ()


@rule(
    "MIG-12",
    "An unusable MIG ConfigMap",
    Place.CLUSTER,
    explains=_ABOVE,
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def wrong_key(snapshot: Snapshot) -> Iterator[Finding]:
    """The text has to have mig-configs, and to be under the key config.yaml; kgpu's operator also takes
    config-default.yaml.
    """
    config = mig_config(snapshot)
    if (
        config.told_by is None
        or config.layouts is not None
        or (config.source is None and not snapshot.knows("ConfigMap"))
    ):
        return
    keys = ", ".join(config.source.map("data")) if config.source else ""
    wanted = " or ".join(config.keys)
    what = f"has no readable {wanted} (its keys: {keys or 'none'})" if config.source else "does not exist"
    yield Finding(
        subject=config.source.subject if config.source else config.told_by.subject,
        cause=f"{config.told_by} tells the MIG manager to use ConfigMap {config.name}, which {what}",
        evidence=(config.told_by.cite("spec.migManager.config.name"), config.cite()),
        remedy=(
            Remedy("with the file of layouts in place of FILE:"),
            remedies.config_map_of_file(
                config.source.namespace if config.source else "gpu-operator", config.name, config.key
            ),
            Remedy("then set the label nvidia.com/mig.config again"),
        ),
        confidence=CERTAIN,
    )


@rule("MIG-13", "An own MIG configuration that nobody uses", Place.CLUSTER, explains=("MIG-01", "MIG-00"))
def nobody_told(snapshot: Snapshot) -> Iterator[Finding]:
    """A fresh ClusterPolicy has no spec.migManager.config; a JSON patch with replace fails with 'the server rejected
    our request due to an error in our request'. A merge patch makes the field.
    """
    for policy in snapshot.all("ClusterPolicy"):
        if policy.at("spec.migManager.config.name") is not None:
            continue
        spaces = {pod.namespace for pod in matching.pods_of_part(snapshot, MIG_MANAGER)}
        own = {
            obj.key: obj
            for obj in snapshot.all("ConfigMap")
            if obj.namespace in spaces
            and not obj.name.startswith(("default-mig", "mig-parted-config"))
            and not obj.owner
            and _layouts(obj.map("data"))
        }
        for obj in own.values():
            named = {"spec": {"migManager": {"config": {"name": obj.name}}}}
            yield Finding(
                subject=policy.subject,
                cause=(
                    f"{obj} has MIG layouts, and {policy} does not name it: it has no spec.migManager.config, so a "
                    "JSON patch that replaces it is refused"
                ),
                evidence=(
                    policy.cite("spec.migManager.config"),
                    obj.cite(f"data[{stack_config.mig_key(obj.map('data'))}]", "mig-configs"),
                ),
                remedy=(remedies.patch_policy(policy.name, named),),
                level=Level.PROBLEM if _wants(snapshot, obj.map("data")) else Level.NOTE,
            )


def _layouts(data: Mapping[str, Any]) -> Mapping[str, tuple[Layout, ...]]:
    """The layouts in a ConfigMap, by name."""
    return stack_config.layouts(data.get(stack_config.mig_key(data))) or {}


def _wants(snapshot: Snapshot, data: Mapping[str, Any]) -> bool:
    """Whether a node asks for one of these layouts."""
    known = _layouts(data)
    used = mig_config(snapshot).layouts or {}
    return any(wanted_mig(node) in known and wanted_mig(node) not in used for node in snapshot.nodes.values())


@rule("MIG-14", "Slices changed behind the plugin", Place.PLUGIN, explains=_ABOVE)
def by_hand(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugin lists slices when it starts: what nvidia-smi mig -cgi makes later is not offered."""
    for host in snapshot.hosts.values():
        node = snapshot.nodes.get(host.node)
        if node is None or host.gpus is None or mig_state(node) in ("pending", "rebooting", "failed"):
            continue
        if stack_config.mig_strategy(snapshot, node) != "mixed":
            continue
        plugins = [pod for pod in matching.pods_of_part(snapshot, matching.PLUGIN, node=node.name) if pod.ready]
        slices = _whole_slices(host.gpus)
        offered = {name: node.capacity(name) or 0 for name in node.resources() if matching.is_mig(name)}
        shared = (  # or renamed
            any(
                matching.is_accelerator(name) and name != names.GPU_RESOURCE and name not in offered
                for name in node.resources()
            )
            or any(matching.is_shared(name) for name in node.resources())
            or node.labels.get(names.LABEL_GPU_SHARING_STRATEGY, "none") != "none"
        )
        different = sorted(name for name in {*slices, *offered} if slices.get(name, 0) != offered.get(name, 0))
        if plugins and different and not shared and any(gpu.mig_enabled for gpu in host.gpus):
            resource, pod = different[0], plugins[0]
            yield _of_node(
                node,
                f"node {node.name} has {slices.get(resource, 0)} {resource.removeprefix(names.MIG_RESOURCE_PREFIX)} "
                f"slices and offers {offered.get(resource, 0)}: they were changed after {pod} started",
                (
                    host.cite("gpus", f"{slices.get(resource, 0)} of {resource}"),
                    node.cite(f"status.capacity[{resource}]"),
                ),
                (
                    remedies.delete_pod(pod.namespace, pod.name),
                    Remedy(
                        "the next time by the label, with a layout of the MIG manager's ConfigMap in place of NAME:"
                    ),
                    remedies.label(node.name, _LABEL, "NAME", anew=True),
                ),
                confidence=LIKELY,
            )


def _whole_slices(gpus: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for gpu in gpus:
        for name in gpu.instances:
            profile = profile_of(name)
            if profile is not None and profile.whole:
                counts[profile.resource_name] = counts.get(profile.resource_name, 0) + 1
    return counts


@rule(
    "MIG-15",
    "More slices than fit",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("NVIDIA/mig-parted, documentation",),
)
def no_room(snapshot: Snapshot) -> Iterator[Finding]:
    """A card has 7 compute slices and 8 blocks of memory (A30: 4 and 4); 3g takes 4 blocks. A profile has certain
    places only, and one with extra media engines (+me) can be there once.
    """
    for node, name, rows in _chosen(snapshot):
        geometry = geometry_of(node.labels.get(names.LABEL_GPU_PRODUCT, ""))
        if geometry is None or mig_state(node) == "success":
            continue
        for row in rows:
            counts = stack_config.instances(geometry, row.profiles)
            if row.filtered or not counts or _fit(geometry, counts):
                continue
            layout = ", ".join(f"{count} x {each}" for each, count in row.profiles.items())
            yield _of_node(
                node,
                f"the MIG layout {name} ({layout}) does not fit on the cards of node {node.name}: "
                f"{_why_not(geometry, counts)}",
                (_cite(node, _LABEL), mig_config(snapshot).cite(), _cite(node, names.LABEL_GPU_PRODUCT)),
                (
                    Remedy("on the node:"),
                    Remedy("nvidia-smi mig -lgipp"),
                    Remedy("take slices out of {}, then:", name),
                    _relabel(node, name),
                ),
            )


def _fit(geometry: Geometry, counts: Mapping[InstanceProfile, int]) -> bool:
    # One too many is as good as a million, which a ConfigMap may ask for.
    each = (repeat(profile, min(count, geometry.max_devices + 1)) for profile, count in counts.items())
    return fits(geometry, tuple(chain.from_iterable(each)))


def _why_not(geometry: Geometry, counts: Mapping[InstanceProfile, int]) -> str:
    slices = sum(profile.slices * count for profile, count in counts.items())
    units = sum(profile.units * count for profile, count in counts.items())
    if slices > geometry.slices or units > geometry.units:
        return f"it takes {slices} of {geometry.slices} compute slices and {units} of {geometry.units} blocks of memory"
    many = next((profile for profile, count in counts.items() if count > profile.count), None)
    if many is not None:
        return f"a card can have {many.count} of {many.name}"
    return "a card has no places, or not the engines, for all of them together"


@rule(
    "MIG-20",
    "Slices of several sizes under strategy single",
    Place.PLUGIN,
    explains=(*_ABOVE, "MIG-06"),
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
)
def mixed_under_single(snapshot: Snapshot) -> Iterator[Finding]:
    """The layout is legal and its state becomes success; the plugin then offers nothing, since nvidia.com/gpu would
    mean different things.
    """
    for node, name, rows in _chosen(snapshot):
        row = next(
            (
                layout
                for layout in rows
                if layout.enabled and len({key for key, count in layout.profiles.items() if count}) > 1
            ),
            None,
        )
        if (
            row is None
            or row.filtered
            or stack_config.mig_strategy(snapshot, node) != "single"
            or mig_state(node) != "success"
        ):
            continue
        if any(matching.is_mig(each) for each in node.resources()):
            continue
        yield _of_node(
            node,
            f"node {node.name} has the MIG layout {name} with slices of several sizes ({', '.join(row.profiles)}), "
            "which strategy single does not offer at all",
            (
                _cite(node, _LABEL),
                node.cite(f"metadata.labels[{names.LABEL_MIG_STRATEGY}]", stack_config.mig_strategy(snapshot, node)),
                mig_config(snapshot).cite(),
            ),
            (cluster_policy.change(snapshot, cluster_policy.MIXED), Remedy("pods then ask for nvidia.com/mig-PROFILE")),
        )


@rule(
    "MIG-21",
    "Profiles of another card",
    Place.HARDWARE,
    explains=_ABOVE,
    rests_on=("NVIDIA/mig-parted v0.15.0, source",),
)
def other_card(snapshot: Snapshot) -> Iterator[Finding]:
    """1g.5gb is of a card with 40 GB, 1g.10gb of one with 80 GB."""
    for node, name, rows in _chosen(snapshot):
        product = node.labels.get(names.LABEL_GPU_PRODUCT, "")
        geometry = geometry_of(product)
        if geometry is None or mig_state(node) in ("success", "") or _valid(node, rows):
            continue
        bad = sorted({each for row in rows for each in _foreign(row, geometry)})
        fitting = [
            each
            for each, own in (mig_config(snapshot).layouts or {}).items()
            if any(row.profiles for row in own) and _valid(node, own)
        ]
        yield _of_node(
            node,
            f"the MIG layout {name} of node {node.name} asks for {', '.join(bad)}, which {product} does not have: its "
            f"smallest slice is {geometry.smallest.name}",
            (_cite(node, _LABEL), _cite(node, names.LABEL_GPU_PRODUCT), _cite(node, names.MIG_CONFIG_STATE_LABEL)),
            (Remedy("on the node:"), Remedy("nvidia-smi mig -lgip"), _relabel(node, fitting[0] if fitting else "NAME")),
        )
