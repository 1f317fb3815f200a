"""Rows AMD: the amdgpu driver, AMD's device plugin, and its operator's DeviceConfig."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.errors import DriverFault
from kgpu.base.plain import mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.agent_reports import without_driver
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Node, Pod
from kgpu.doctor.matching import AMD, EXPORTER, GFD, OPERATOR, PLUGIN
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place, Subject
from kgpu.doctor.objects import Obj, at, plain
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, KERNEL, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.stack_config import still_broken
from kgpu.doctor.vendor_drivers import AMD as DRIVER
from kgpu.doctor.vendor_drivers import DRIVERS, cards_of, hosts_of, missing_modules, not_loaded
from kgpu.doctor.vendor_gpus import troubled
from kgpu.formats import names
from kgpu.hw.port import Problem

_RESOURCE: Final = names.AMD_GPU_RESOURCE
_FINALIZER: Final = names.AMD_DEVICECONFIG_FINALIZER
_HEALTH: Final = re.compile(r"metricsexporter\.amd\.com\.gpu\.(?P<index>\w+)\.state")
_ABOVE: Final = ("SCH-01", "SCH-02", "SCH-03", "SCH-14", "DPL-01", "DPL-03", "AMD-03")
_WAIT_SECONDS: Final = 1800.0
_WITH_COMPUTE: Final = (
    Remedy("modinfo amdgpu | grep -i filename; dmesg | grep -i kfd; grep -i hsa /boot/config-$(uname -r)"),
    Remedy("take a kernel and a ROCm driver that go together (Talos: the amdgpu extension)"),
)
_VIRTUAL: Final = f"{names.NFD_PREFIX}amd-vgpu"
"""The label of AMD's rule of node features for virtual functions."""
_KFD: Final = "/sys/class/kfd"
_PARTS: Final = (PLUGIN, GFD, EXPORTER, OPERATOR)


def _hosts(snapshot: Snapshot) -> Iterator[tuple[Node, HostFacts]]:
    """Nodes with AMD cards whose host facts are known, with those facts."""
    return ((node, host) for host, node, _ in hosts_of(snapshot, DRIVER) if node is not None)


def _of_node(
    node: Node, cause: str, evidence: tuple[Evidence, ...], remedy: tuple[Remedy, ...], **more: Any
) -> Finding:
    return Finding(
        subject=node.subject, cause=cause, evidence=evidence, remedy=remedy,
        **{"confidence": CERTAIN, "nodes": (node.name,), **more},
    )  # fmt: skip


@rule(
    "AMD-02",
    "No compute part of the driver",
    Place.KERNEL,
    explains=_ABOVE,
    rests_on=("ROCm/k8s-device-plugin#42", "ROCm/k8s-device-plugin#40", "ROCm/k8s-device-plugin#23"),
)
def no_compute(snapshot: Snapshot) -> Iterator[Finding]:
    """Without /dev/kfd the plugin runs, finds nothing and says nothing. The KFD also leaves out GPUs that it does not
    support.
    """
    yield from troubled(snapshot, Problem.UNPROVEN)
    seen = set()
    for host, node, cards in hosts_of(snapshot, DRIVER):
        offers = node is not None and node.allocatable(_RESOURCE)
        loaded = not missing_modules(host, DRIVER) and bool(host.modules)
        # No device files at all means that nobody has looked, as in a container that has no /dev.
        gone = host.present.get(_KFD) is False or (host.devices and "kfd" not in host.devices)
        if not loaded or not gone or offers:
            continue
        seen.add(host.node)
        plugins = matching.pods_of_part(snapshot, PLUGIN, vendor=AMD, node=host.node)
        ready = next((f" although {pod} runs" for pod in plugins if pod.ready), "")
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"node {host.node} has amdgpu loaded without its compute part: there is no /dev/kfd, so it offers no "
                f"{_RESOURCE}{ready}"
            ),
            evidence=(
                host.cite("modules", "amdgpu"),
                host.cite("present", f"{_KFD}: not there"),
                *((host.cite("pci", ", ".join(card.address for card in cards)),) if cards else ()),
            ),
            remedy=(
                Remedy("on {}:", host.node),
                *_WITH_COMPUTE,
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
        )
    for node, said, now in without_driver(snapshot, AMD, DriverFault.INCOMPLETE):
        if node.name not in seen:
            yield _of_node(
                node,
                f"node {node.name} has amdgpu loaded without its compute part (KFD): none of its GPUs can be used",
                (said.cite(),),
                (Remedy("on {}:", node.name), *_WITH_COMPUTE),
                confidence=CERTAIN if now else LIKELY,
                since=said.since,
            )


@rule(
    "AMD-03",
    "Waiting for AMD's driver",
    Place.KERNEL,
    explains=("SCH-01", "SCH-02", "DPL-03"),
    rests_on=("ROCm/gpu-operator, documentation",),
)
def waits_for_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """Every part has an init container that waits for the module; KMM builds and loads it."""
    by_node: dict[str, list[Pod]] = {}
    for part in (PLUGIN, GFD, EXPORTER):
        for pod in matching.pods_of_part(snapshot, part, vendor=AMD):
            if pod.node and matching.initialising(pod) is not None:
                by_node.setdefault(pod.node, []).append(pod)
    for name, pods in by_node.items():
        node, container = snapshot.nodes.get(name), matching.initialising(pods[0])
        if node is None or container is None:
            continue
        age = snapshot.age(text(at(container.status, "state.running.startedAt"))) or 0.0
        state = next((row for row in _module_states(snapshot, name)), None)
        yield _of_node(
            node,
            f"{pods[0]} on node {name} waits in {container.name} for the module "
            f"amdgpu{f', which is in the state {state[1]}' if state else ''}",
            (container.cite_status(), *((state[2],) if state else ())),
            (
                Remedy("kubectl get modules.kmm.sigs.x-k8s.io -A; kubectl get pods -A | grep -E 'build|kmm'"),
                remedies.logs(pods[0].namespace, pods[0].name, "-c", container.name),
            ),
            level=Level.PROBLEM if age > _WAIT_SECONDS else Level.WAIT,
            expected="" if age > _WAIT_SECONDS else "up to half an hour while the driver is built",
            confidence=LIKELY,
            pods=tuple(pod.path for pod in pods),
        )


def _module_states(snapshot: Snapshot, node: str) -> Iterator[tuple[Obj, str, Evidence]]:
    """The driver states of a node in DeviceConfigs."""
    for config in snapshot.all("DeviceConfig"):
        state = text(mapping(config.map("status.nodeModuleStatus").get(node)).get("status"))
        if state:
            yield config, state, config.cite(f"status.nodeModuleStatus[{node}].status")


@rule(
    "AMD-04",
    "The kernel's own amdgpu is in the way",
    Place.KERNEL,
    explains=_ABOVE,
    rests_on=("ROCm/gpu-operator, documentation", "ROCm/gpu-operator#330"),
)
def inbox_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """KMM does not replace a module that is loaded: it has to be on the blacklist before the machine starts, in the
    initramfs too, from which Ubuntu 22.04 loads it.
    """
    for node, host in _hosts(snapshot):
        ready = any(key.startswith("kmm.node.kubernetes.io/") and key.endswith(".ready") for key in node.labels)
        if "amdgpu" not in (host.modules or {}) or ready or any("amdgpu" in module for module in host.dkms or ()):
            continue
        barred = host.blacklist.get("amdgpu", "")
        for config in snapshot.all("DeviceConfig"):
            asked = config.at("spec.driver.blacklist") is True
            if config.at("spec.driver.enable") is not True or (asked and not barred):
                continue
            patched = remedies.patch(
                config.namespace, "deviceconfig", config.name, {"spec": {"driver": {"blacklist": True}}}
            )
            yield _of_node(
                node,
                f"{config} is to bring a driver to node {node.name}, where the kernel's own amdgpu is loaded "
                "already: the new one is never loaded"
                + (f"; {barred} forbids it, and it was loaded before that is read" if barred else ""),
                (
                    host.cite("modules", "amdgpu"),
                    config.cite("spec.driver.blacklist"),
                    *((host.cite("blacklist", f"amdgpu: {barred}"),) if barred else ()),
                ),
                (
                    *((Remedy("on {}:", node.name), Remedy("update-initramfs -u")) if barred else (patched,)),
                    *remedies.reboot(node.name),
                ),
                confidence=LIKELY,
            )


@rule(
    "AMD-19",
    "No DeviceConfig selects the node",
    Place.CLUSTER,
    explains=_ABOVE,
    rests_on=("ROCm/gpu-operator#183", "ROCm/gpu-operator#139"),
)
def not_selected(snapshot: Snapshot) -> Iterator[Finding]:
    """AMD's operator brings its parts to nodes that spec.selector matches, usually amd-gpu=true. Virtual functions have
    amd-vgpu instead, and a device id that AMD's rule of node features does not list has neither.
    """
    configs = [config for config in snapshot.all("DeviceConfig") if config.map("spec.selector") and not config.deleting]
    for node in matching.gpu_nodes(snapshot, AMD) if configs else ():
        offers = any(node.capacity(name) for name in node.resources() if matching.vendor_of(name) == AMD)
        if offers or any(_selects(config, node) for config in configs):
            continue
        wanted = configs[0].map("spec.selector")
        lacks = [f"{key}={value}" for key, value in wanted.items() if node.labels.get(str(key)) != value]
        host = snapshot.hosts.get(node.name)
        cards = cards_of(host, DRIVER) if host else []
        ids = f" (device {cards[0].device})" if cards and cards[0].device else ""
        key = next(
            (label for label in (_VIRTUAL, matching.pci_label(node, AMD)) if node.labels.get(label) == "true"), ""
        )
        yield _of_node(
            node,
            f"node {node.name} has AMD GPUs{ids} and not the label {', '.join(lacks)} that {configs[0]} selects nodes "
            "by: AMD's operator brings no part there",
            (
                configs[0].cite("spec.selector"),
                node.cite(f"metadata.labels[{key}]") if key else node.cite("metadata.labels"),
                *((host.cite("pci", f"{cards[0].address} 1002:{cards[0].device}"),) if host and cards else ()),
            ),
            (
                Remedy("a DeviceConfig for these nodes, or this one's selector:"),
                remedies.patch(
                    configs[0].namespace, "deviceconfig", configs[0].name,
                    {"spec": {"selector": {**dict.fromkeys(wanted, None), key or _VIRTUAL: "true"}}},
                ),
            ),
            confidence=LIKELY,
        )  # fmt: skip


def _selects(config: Obj, node: Node) -> bool:
    return all(node.labels.get(str(key)) == value for key, value in config.map("spec.selector").items())


def _states(snapshot: Snapshot, wanted: str) -> Iterator[tuple[Obj, str, Evidence]]:
    """DeviceConfigs with a node of which the driver is in a state, and that node's name."""
    for config in snapshot.all("DeviceConfig"):
        for name, row in config.map("status.nodeModuleStatus").items():
            if text(mapping(row).get("status")) == wanted:
                yield config, str(name), config.cite(f"status.nodeModuleStatus[{name}].status")


@rule(
    "AMD-06",
    "The upgrade waits for a reboot",
    Place.KERNEL,
    explains=_ABOVE,
    rests_on=("ROCm/gpu-operator, documentation",),
)
def reboot_wanted(snapshot: Snapshot) -> Iterator[Finding]:
    """Drivers 6.2 and 6.3 need a reboot; upgradePolicy.rebootRequired lets the controller do it."""
    allowed = {"spec": {"driver": {"upgradePolicy": {"rebootRequired": True}}}}
    for config, name, evidence in _states(snapshot, "Reboot-Required"):
        if config.at("spec.driver.upgradePolicy.rebootRequired") is not True:
            yield Finding(
                subject=Subject("Node", name),
                cause=f"the driver upgrade of node {name} waits for a reboot, which {config} does not allow",
                evidence=(evidence, config.cite("spec.driver.upgradePolicy.rebootRequired")),
                remedy=(remedies.patch(config.namespace, "deviceconfig", config.name, allowed),),
                confidence=CERTAIN,
                nodes=(name,),
            )


def left_taint(snapshot: Snapshot) -> Iterator[Finding]:
    """AMD-09 and AMD-16: taints of AMD's own workflows that are still there."""
    for node in snapshot.nodes.values():
        for position, taint in enumerate(node.taints):
            key = text(taint.get("key"))
            words = _TAINTS.get(key)
            if words is not None:
                rule_id, why, *steps = words
                yield _of_node(
                    node,
                    f"node {node.name} takes no pods: the taint {key} of {why} is still there",
                    (node.cite(f"spec.taints[{position}]"),),
                    tuple(Remedy(step, node=node.name, taint=f"{key}-") for step in steps),
                    confidence=LIKELY,
                    id=rule_id,
                )


_TAINTS: Final = {
    names.AMD_PARTITION_TAINT: (
        "AMD-09",
        "a change of partitions",
        remedies.TAINT + "   # when the partitions are as wanted",
    ),
    "amd-gpu-unhealthy": (
        "AMD-16",
        "a remediation",
        "resume or stop the workflow of {node} (argo resume, argo stop):",
        "kubectl get workflows -A",
        "then:",
        remedies.TAINT,
    ),
}


@rule(
    "AMD-09",
    "The taint of a change of partitions",
    Place.CLUSTER,
    explains=("TNT-*", "SCH-*"),
    rests_on=("AMD ROCm documentation",),
)
def taint_of_partitions(snapshot: Snapshot) -> Iterator[Finding]:
    """The device config manager's procedure sets amd-dcm=up:NoExecute by hand, and it is taken off by hand."""
    yield from (finding for finding in left_taint(snapshot) if finding.id == "AMD-09")


@rule(
    "AMD-16",
    "The taint of a remediation",
    Place.CLUSTER,
    explains=("TNT-*", "SCH-*"),
    rests_on=("AMD ROCm documentation",),
)
def taint_of_remediation(snapshot: Snapshot) -> Iterator[Finding]:
    """A workflow that has stopped, or waits to be resumed, leaves its taint."""
    yield from (finding for finding in left_taint(snapshot) if finding.id == "AMD-16")


@rule(
    "AMD-10",
    "A GPU withdrawn by the exporter",
    Place.HARDWARE,
    explains=("SCH-01", "SCH-03", "DPL-*"),
    rests_on=("ROCm/device-metrics-exporter, documentation",),
)
def unhealthy(snapshot: Snapshot) -> Iterator[Finding]:
    """The metrics exporter checks every 30 s; its thresholds are 0 unless configured."""
    for node in snapshot.nodes.values():
        for label, value in node.labels.items():
            hit = _HEALTH.fullmatch(label)
            if hit and value == "unhealthy":
                yield _of_node(
                    node,
                    f"AMD GPU {hit['index']} of node {node.name} is withdrawn: the metrics exporter counts it as "
                    "unhealthy (any uncorrectable memory error, unless told otherwise)",
                    (node.cite(f"metadata.labels[{label}]"), node.cite(f"status.allocatable[{_RESOURCE}]")),
                    (
                        Remedy("on {}:", node.name),
                        Remedy("amd-smi metric --ecc -g {}; dmesg | grep -i ras", hit["index"]),
                        Remedy(
                            "let its pods end and reset it (amd-smi reset -G), "
                            "or set the threshold in the exporter's configuration"
                        ),
                    ),
                )


@rule(
    "AMD-12",
    "A DeviceConfig that does not go",
    Place.CLUSTER,
    explains=("AMD-13",),
    rests_on=("AMD ROCm documentation",),
)
def stuck_config(snapshot: Snapshot) -> Iterator[Finding]:
    """Its finalizer is the operator's: delete the DeviceConfig before the operator."""
    for config in snapshot.all("DeviceConfig"):
        operators = [pod for pod in matching.pods_of_part(snapshot, OPERATOR, vendor=AMD) if pod.ready]
        if config.deleting and _FINALIZER in config.list("metadata.finalizers") and not operators:
            yield Finding(
                subject=config.subject,
                cause=(
                    f"{config} is being deleted and keeps its finalizer: "
                    "no AMD GPU operator runs that would take it off"
                ),
                evidence=(config.cite("metadata.deletionTimestamp"), config.cite("metadata.finalizers")),
                remedy=(
                    Remedy("install the operator again and let it clean up, or:"),
                    remedies.patch(config.namespace, "deviceconfig", config.name, {"metadata": {"finalizers": []}}),
                ),
                confidence=CERTAIN,
            )


@rule(
    "AMD-13",
    "helm uninstall hangs",
    Place.CLUSTER,
    rests_on=("AMD ROCm documentation",),
)
def hook_waits(snapshot: Snapshot) -> Iterator[Finding]:
    """The chart's pre-delete hook waits until all DeviceConfigs are gone."""
    for job in snapshot.all("Job"):
        hooks = job.annotations.get("helm.sh/hook", "")
        images = [text(container.get("image")) for container in job.maps("spec.template.spec.containers")]
        left = [config for config in snapshot.all("DeviceConfig") if config.namespace == job.namespace]
        ours = "amd" in job.name or any(re.search(r"rocm/|amd[-/]gpu", image) for image in images)
        if "pre-delete" in hooks and ours and left and not job.number("status.succeeded"):
            yield Finding(
                subject=job.subject,
                cause=f"helm uninstall waits for {job}, which waits for {left[0]} to go",
                evidence=(job.cite("metadata.annotations[helm.sh/hook]"), left[0].cite("metadata.deletionTimestamp")),
                remedy=(
                    remedies.delete(left[0].namespace, "deviceconfig", left[0].name),
                    Remedy("then, with the name of the release in place of RELEASE:"),
                    Remedy("helm uninstall RELEASE --no-hooks"),
                ),
            )


@rule(
    "AMD-14",
    "The driver is being installed",
    Place.KERNEL,
    explains=("AMD-03",),
    rests_on=("ROCm/gpu-operator#403",),
)
def installing(snapshot: Snapshot) -> Iterator[Finding]:
    """The chart refuses an upgrade while a node is in Install-In-Progress."""
    for config, name, evidence in _states(snapshot, "Install-In-Progress"):
        yield Finding(
            subject=Subject("Node", name),
            cause=f"{config} is still installing the driver on node {name}: until then helm upgrade is refused",
            evidence=(evidence,),
            remedy=(Remedy("kubectl -n {} get pods -o wide | grep {}", config.namespace, name),),
            level=Level.WAIT,
            expected="5 to 20 minutes; after that look at the build's log",
            nodes=(name,),
        )


@rule(
    "AMD-15",
    "No workflow for this fault",
    Place.CLUSTER,
    rests_on=("AMD ROCm documentation",),
)
def no_remediation(snapshot: Snapshot) -> Iterator[Finding]:
    """Remediation starts for node conditions that the ConfigMap of workflows names exactly."""
    enabled = [
        config for config in snapshot.all("DeviceConfig") if config.at("spec.remediationWorkflow.enable") is True
    ]
    maps = [
        (obj, str(value))
        for obj in snapshot.all("ConfigMap")
        for value in obj.map("data").values()
        if "nodeCondition:" in str(value)
    ]
    for config in enabled[:1] if maps else ():
        for node in matching.gpu_nodes(snapshot, AMD):
            for condition in node.conditions():
                if (
                    condition.type.startswith("AMDGPU")
                    and condition.status == "True"
                    and not any(
                        re.search(rf"nodeCondition:\s*[\"']?{re.escape(condition.type)}\b", workflow)
                        for _, workflow in maps
                    )
                ):
                    yield _of_node(
                        node,
                        f"node {node.name} has the condition {condition.type}, for which {maps[0][0]} has no workflow: "
                        f"{config} repairs nothing",
                        (condition.cite(), maps[0][0].cite("data", maps[0][1])),
                        (
                            Remedy("add nodeCondition: {} there:", plain(condition.type)),
                            remedies.edit(maps[0][0].namespace, "configmap", maps[0][0].name),
                        ),
                    )


def _is_of_vendors(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    if hit.pod is None:
        return ()
    mine = {pod.key for part in _PARTS for pod in matching.pods_of_part(snapshot, part) if _vendor(pod) in DRIVERS}
    if hit.pod.key not in mine:
        return None
    host = snapshot.hosts.get(hit.node)
    value = host.settings.get("fs.inotify.max_user_instances") if host else None
    return (host.cite("settings", f"fs.inotify.max_user_instances: {value}"),) if host and value else ()


def _vendor(pod: Pod) -> str:
    return next((part.vendor for part in matching.parts_of(pod) if part.vendor), "")


def mixed_modes(snapshot: Snapshot) -> Iterator[Finding]:
    """AMD-08 by the node itself: its GPUs are parted differently, and their devices are offered as one resource, so
    that those in the less frequent mode are left out. Whether that is so shows on the Node alone.
    """
    for host, node, _ in hosts_of(snapshot, DRIVER):
        modes = {gpu.index: gpu.mode for gpu in host.gpus or () if gpu.mode}
        single = node is not None and node.capacity(_RESOURCE)
        others = node is not None and any(
            name != _RESOURCE and node.capacity(name) for name in node.resources() if matching.vendor_of(name) == AMD
        )
        if len(set(modes.values())) < 2 or not single or others or node is None:
            continue
        usual = max(set(modes.values()), key=lambda mode: (list(modes.values()).count(mode), mode))
        several = ", ".join(sorted(set(modes.values())))
        odd = [index for index, mode in modes.items() if mode != usual]
        yield _of_node(
            node,
            f"GPUs of node {node.name} are partitioned in different ways ({several}), and "
            f"offered as {_RESOURCE} alone: GPU {', '.join(map(str, odd))} is left out",
            (
                host.cite("gpus", ", ".join(f"GPU {index} {mode}" for index, mode in modes.items())),
                node.cite(f"status.capacity[{_RESOURCE}]"),
            ),
            (
                Remedy("start the plugin with --resource-naming-strategy mixed"),
                Remedy("or partition all GPUs alike, on {}:", node.name),
                Remedy("amd-smi set --gpu {} --compute-partition {}", odd[0], usual.partition("_")[0].upper()),
            ),
            confidence=LIKELY,
        )


def _in_use(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Who has the driver open on the node."""
    host = snapshot.hosts.get(hit.node)
    users = [f"{one.pid} {one.name}" for one in (host.processes if host else None) or () if "/dev/kfd" in one.holds]
    return (host.cite("processes", f"{', '.join(users[:6])} with /dev/kfd open"),) if host and users else ()


def _version_slip(snapshot: Snapshot) -> Iterator[Finding]:
    """AMD-05 by the DeviceConfig: counts only where the build fails as well."""
    for config in snapshot.all("DeviceConfig"):
        version = config.text("spec.driver.version")
        short = re.fullmatch(r"(\d+\.\d+)\.0", version)
        failed = [
            pod
            for pod in snapshot.pods.values()
            if "build" in pod.name and pod.namespace == config.namespace and matching.failing(pod)
        ]
        if short and failed:
            yield Finding(
                subject=config.subject,
                cause=(
                    f"{config} asks for driver {version}, a folder that repo.radeon.com does not have (it is called "
                    f"{short[1]}), and {failed[0]} fails"
                ),
                evidence=(config.cite("spec.driver.version"), failed[0].cite("status.phase")),
                remedy=(
                    remedies.patch(
                        config.namespace, "deviceconfig", config.name, {"spec": {"driver": {"version": short[1]}}}
                    ),
                ),
                nodes=tuple(node.name for node in matching.gpu_nodes(snapshot, AMD)),
                pods=tuple(pod.path for pod in failed),
            )


RULES: Final = rules_of(
    Sign(
        id="AMD-01",
        title="No amdgpu driver",
        place=Place.KERNEL,
        pattern=r"amdgpu driver unavailable",
        words="amdgpu driver unavailable",
        where=(LOG, STATUS),
        parts=(PLUGIN, GFD),
        besides=lambda snapshot: not_loaded(snapshot, DRIVER),
        confidence=CERTAIN,
        cause="{who} ends: the module amdgpu is not loaded on node {node}",
        remedy=(
            "on the node:",
            *DRIVER.load,
        ),
        explain="AMD's plugin and its node labeller end with exit code 2 where /sys/module/amdgpu/drivers is missing.",
        explains=_ABOVE,
        rests_on=("ROCm/k8s-device-plugin ed76468, source",),
    ),
    Sign(
        id="AMD-05",
        title="A driver version that is not there",
        place=Place.KERNEL,
        pattern=r"repo\.radeon\.com\S*.*404|404.*repo\.radeon\.com",
        words="repo.radeon.com",
        where=(LOG, STATUS),
        besides=_version_slip,
        cause="{who} can't build the driver: repo.radeon.com has no folder of that version",
        remedy=("set spec.driver.version of the DeviceConfig as the folder is called: 6.4, not 6.4.0",),
        explain=(
            "The version has to be the name of a folder below repo.radeon.com/amdgpu: "
            "first releases have no third number."
        ),
        explains=_ABOVE,
        rests_on=("ROCm/gpu-operator, documentation",),
    ),
    Sign(
        id="AMD-07",
        title="No more inotify instances",
        place=Place.KERNEL,
        pattern=r"too many open files|inotify.*(?:limit|no space left)",
        words="",
        where=(LOG, STATUS),
        parts=_PARTS,
        proof=_is_of_vendors,
        cause="{who} ends: node {node} has no inotify instances left",
        remedy=("on the node:", "sysctl -w fs.inotify.max_user_instances=8192"),
        explain="Each watcher of files takes an instance; the usual limit of 128 is soon reached.",
        rests_on=("AMD ROCm documentation", "intel/intel-device-plugins-for-kubernetes#1915"),
    ),
    Sign(
        id="AMD-08",
        title="Partitions of different styles",
        place=Place.PLUGIN,
        pattern=r"[Pp]artitions of different styles .*not supported|not supported with single strategy",
        words="not supported",
        where=(LOG, STATUS),
        parts=(PLUGIN,),
        always=True,
        proof=still_broken,
        besides=mixed_modes,
        confidence=CERTAIN,
        cause=(
            "{who} offers nothing: GPUs of node {node} are partitioned in different ways, "
            "and its naming strategy is single"
        ),
        remedy=(
            "start the plugin with -resource_naming_strategy=mixed",
            "or partition all GPUs alike:",
            "amd-smi set --compute-partition SPX",
        ),
        explain="With strategy single everything is called amd.com/gpu and has to be the same (SPX, DPX, CPX; NPS).",
        explains=_ABOVE,
        rests_on=("ROCm/k8s-device-plugin ed76468, source",),
    ),
    Sign(
        id="AMD-11",
        title="The driver is in use",
        place=Place.KERNEL,
        pattern=r"Module amdgpu is in use|amdgpu.*(?:is in use by|module is busy|resource busy)",
        words="amdgpu",
        where=(LOG, STATUS, EVENT),
        proof=_in_use,
        cause="{who} can't replace the driver on node {node}: amdgpu is in use",
        remedy=(
            "on the node:",
            "sh -c 'lsmod | grep amdgpu; fuser -v /dev/kfd /dev/dri/*'",
            "let the upgrade controller empty the node: spec.driver.upgradePolicy.enable: true",
        ),
        explain="Workloads, the metrics exporter and the device plugin hold the module.",
        explains=_ABOVE,
        rests_on=("AMD ROCm documentation",),
    ),
    Sign(
        id="AMD-18",
        title="AppArmor keeps the profiler out",
        place=Place.KERNEL,
        pattern=r'apparmor="DENIED".*(?:comm|name)="[^"]*(?:rocprof|omnitrace|omniperf|rocgdb|amd-smi|kfd)[^"]*"',
        words='apparmor="DENIED"',
        where=(KERNEL,),
        confidence=CERTAIN,
        cause="AppArmor on node {node} refuses a profiler in a pod",
        remedy=("securityContext.appArmorProfile.type: Unconfined on the container that profiles",),
        explain="Profilers read what the default profile does not allow.",
        rests_on=("AMD ROCm documentation",),
    ),
)
