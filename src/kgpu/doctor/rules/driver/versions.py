"""Rows DRV: which driver fits which system, CUDA, fabric manager and device files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.plain import strings
from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, matching, messages, remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import DRIVER, IMAGE_WORDS, VALIDATOR
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place, Subject
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_BELOW: Final = ("DRV-02", "DRV-03", "DPL-*", "SCH-02", "RUN-01", "OPR-15", "IMG-*")


def on_host(
    host: HostFacts, cause: str, *evidence: str, remedy: tuple[Remedy, ...], confidence: float = CERTAIN
) -> Finding:
    """A finding about a node by fields of its host's facts."""
    return Finding(
        subject=Subject("Node", host.node),
        cause=cause,
        evidence=tuple(host.cite(field) for field in evidence),
        remedy=remedy,
        confidence=confidence,
        nodes=(host.node,),
    )


@rule(
    "DRV-05",
    "Two drivers for one node",
    Place.KERNEL,
    explains=(*_BELOW, "DRV-04"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def two_drivers(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver's container refuses, or fights with the driver that the machine has already."""
    for pod in matching.pods_of_part(snapshot, DRIVER, vendor=matching.NVIDIA):
        node, host = snapshot.nodes.get(pod.node), snapshot.hosts.get(pod.node)
        if pod.ready or pod.ended or not pod.node:
            continue
        own = [
            path for path in (host.libraries if host else None) or () if not path.startswith(names.DRIVER_INSTALL_DIR)
        ]
        label = names.LABEL_DEPLOY_PREFIX + "driver"
        marked = node is not None and node.labels.get(label) == "pre-installed"
        if not own and not marked:
            continue
        libraries = host.cite("libraries", own[0]) if host and own else None
        yield Finding(
            subject=pod.subject,
            cause=f"{pod} is to install a driver on node {pod.node}, which has one of its own",
            evidence=(
                *((libraries,) if libraries else ()),
                *((node.cite(f"metadata.labels[{label}]"),) if node and marked else ()),
                pod.cite("status.phase"),
            ),
            remedy=(
                remedies.helm_set("driver.enabled=false"),
                Remedy("or take the host's driver away on {} and reboot it", pod.node),
            ),
            confidence=CERTAIN,
            since=pod.created,
            nodes=(pod.node,),
            pods=(pod.path,),
        )


_PRECOMPILED: Final = re.compile(r":(?P<branch>\d{3})-(?P<kernel>\d+\.\d+\.[\w.-]+?)-(?P<system>[a-z]+[\d.]+)$")
_SYSTEM: Final = re.compile(r":[\w.]+(?:-[\w.]+)*?-(?P<system>[a-z]+v?[\d.]+)$")
MADE: Final = re.compile(
    r"(?:ubuntu(?:20|22|24|26)\.04|rhel(?:8|9|10)(?:\.\d+)?|rocky(?:8|9|10)(?:\.\d+)?|rhcos4\.\d+|sles15\.\d)$"
)
"""The systems that driver images are published for, as their tags name them."""


def not_precompiled(node: str, change: Remedy) -> tuple[Remedy, ...]:
    """What helps where there is no precompiled driver for a node's kernel; ``change`` switches these off."""
    return (
        remedies.node_field(node, "status.nodeInfo.kernelVersion"),
        change,
        Remedy("or run a kernel that NVIDIA publishes drivers for"),
    )


def on_the_system(change: Remedy) -> tuple[Remedy, ...]:
    """What helps where there is no driver container for a system; ``change`` switches driver containers off."""
    return (Remedy("install the driver on the node in the system's own way (Talos: a system extension)"), change)


def no_image(snapshot: Snapshot) -> Iterator[Finding]:
    """DRV-07 and DRV-08: the driver's image for this kernel or this system does not exist."""
    for pod in matching.pods_of_part(snapshot, DRIVER, vendor=matching.NVIDIA):
        bad = matching.failing(pod)
        if bad is None or bad.waiting not in IMAGE_WORDS or _not_missing(snapshot, pod):
            continue
        node = snapshot.nodes.get(pod.node)
        kernel, system = _PRECOMPILED.search(bad.image), _SYSTEM.search(bad.image)
        if kernel:
            yield _missing_image(
                pod,
                bad.image,
                "DRV-07",
                f"no precompiled driver is published for kernel {kernel['kernel']}",
                remedy=not_precompiled(
                    pod.node, cluster_policy.change(snapshot, {"driver": {"usePrecompiled": False}})
                ),
                evidence=(
                    bad.cite("image"),
                    bad.cite_status(),
                    *((node.cite("status.nodeInfo.kernelVersion"),) if node else ()),
                ),
            )
        elif system and not MADE.search(system["system"]):
            yield _missing_image(
                pod, bad.image, "DRV-08", f"no driver container is published for the system {system['system']}",
                remedy=on_the_system(cluster_policy.change(snapshot, {"driver": {"enabled": False}})),
                evidence=(
                    bad.cite("image"), bad.cite_status(), *((node.cite("status.nodeInfo.osImage"),) if node else ()),
                ),
            )  # fmt: skip


_PULLED: Final = re.compile(r"[Ff]ailed to pull image|[Ee]rror pulling image")
_ABSENT: Final = re.compile(r"not found|unknown|does not exist")


def _not_missing(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the runtime's reason for not pulling an image of the pod is another than that it does not exist."""
    texts = [event.message for event in snapshot.events(pod) if _PULLED.search(event.message)]
    texts += [message for container in pod.containers for _, message in container.messages if _PULLED.search(message)]
    return bool(texts) and not any(map(_ABSENT.search, texts))


def _missing_image(
    pod: Pod, image: str, rule_id: str, why: str, *, remedy: tuple[Remedy, ...], evidence: tuple[Evidence, ...]
) -> Finding:
    return Finding(
        id=rule_id,
        subject=pod.subject,
        cause=f"{pod} on node {pod.node} can't pull {image}: {why}",
        evidence=evidence,
        remedy=remedy,
        confidence=CERTAIN,
        since=pod.created,
        nodes=(pod.node,),
        pods=(pod.path,),
    )


@rule(
    "DRV-07",
    "No precompiled driver for this kernel",
    Place.KERNEL,
    explains=_BELOW,
    rests_on=(
        "NVIDIA/gpu-operator#910",
        "NVIDIA/gpu-operator#682",
        "NVIDIA/gpu-operator#933",
        "NVIDIA/gpu-operator#1203",
    ),
)
def precompiled_missing(snapshot: Snapshot) -> Iterator[Finding]:
    """The tag of a precompiled driver is branch, kernel and system; NVIDIA publishes some kernels."""
    return (finding for finding in no_image(snapshot) if finding.id == "DRV-07")


@rule(
    "DRV-08",
    "No driver container for this system",
    Place.KERNEL,
    explains=_BELOW,
    rests_on=("NVIDIA/gpu-operator#647", "NVIDIA/gpu-operator#1533", "NVIDIA/gpu-operator#244"),
)
def system_missing(snapshot: Snapshot) -> Iterator[Finding]:
    """Driver containers are published for Ubuntu, RHEL, Rocky, RHCOS and SLES; others bring their own driver."""
    return (finding for finding in no_image(snapshot) if finding.id == "DRV-08")


_MIXED: Final = re.compile(r"different OS versions found for the same kernel version")


@rule(
    "DRV-09",
    "One kernel, two releases of the system",
    Place.DRIVER,
    explains=("DRV-02", "SCH-02", "OPR-15"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def mixed_pool(snapshot: Snapshot) -> Iterator[Finding]:
    """Precompiled drivers are chosen by kernel and system: a kernel must belong to one release."""
    for obj, _, evidence in messages.in_conditions(snapshot, _MIXED):
        yield Finding(
            subject=obj.subject,
            cause=f"{obj} can't choose precompiled drivers: nodes with one kernel run different releases of the system",
            evidence=(evidence,),
            remedy=(
                Remedy(
                    "kubectl get nodes -l nvidia.com/gpu.present=true -o custom-columns=NODE:.metadata.name,"
                    "KERNEL:.status.nodeInfo.kernelVersion,OS:.status.nodeInfo.osImage"
                ),
                Remedy("bring them to one release, or give each group an NVIDIADriver with its own nodeSelector"),
            ),
            confidence=CERTAIN,
        )


_CONFLICT: Final = re.compile(
    r"ConflictingNodeSelector|multiple NVIDIADrivers match the same node|multiple default NVIDIADrivers"
)


@rule(
    "DRV-10",
    "Two NVIDIADrivers for one node",
    Place.DRIVER,
    explains=("DRV-02", "SCH-02", "OPR-15"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def overlapping(snapshot: Snapshot) -> Iterator[Finding]:
    """Every node may be selected by one NVIDIADriver at most."""
    # The operator reports the conflict, or the selectors of two NVIDIADrivers match one node.
    drivers = [driver for driver in snapshot.all("NVIDIADriver") if not driver.deleting]
    selectors = {driver.name: strings(driver.at("spec.nodeSelector")) for driver in drivers}
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        labels = node.labels
        both = [
            driver for driver in drivers if selectors[driver.name] and selectors[driver.name].items() <= labels.items()
        ]
        if len(both) > 1:
            conditions = [
                row for row in messages.in_conditions(snapshot, _CONFLICT, kinds=("NVIDIADriver",)) if row[0] in both
            ]
            yield _overlap(
                both, (*(node.cite("spec.nodeSelector") for node in both), *(row[2] for row in conditions)), node.name
            )
            return
    for obj, _, condition in messages.in_conditions(snapshot, _CONFLICT, kinds=("NVIDIADriver",)):
        yield _overlap([obj], (condition, obj.cite("spec.nodeSelector")), "")


def _overlap(drivers: list[Obj], evidence: tuple[Evidence, ...], node: str) -> Finding:
    who = " and ".join(map(str, drivers))
    where = f"all select node {node}" if node else "selects nodes that another one selects too"
    return Finding(
        subject=drivers[0].subject,
        cause=f"{who} {where}: the operator installs a driver for none of them",
        evidence=evidence,
        remedy=(
            Remedy("kubectl get nvidiadrivers -o custom-columns=NAME:.metadata.name,SELECTOR:.spec.nodeSelector"),
            Remedy(
                "kubectl edit nvidiadriver {}  # give it a nodeSelector that no other one matches", drivers[-1].name
            ),
        ),
        confidence=CERTAIN,
        nodes=(node,) if node else (),
    )


_DOWN: Final = frozenset({1.0, 2.0})
"""NVML's fabric state: not started, in progress."""


def fabric(snapshot: Snapshot) -> Iterator[Finding]:
    """DRV-16: GPUs that have not joined the fabric, without or with a fabric manager."""
    for host in snapshot.hosts.values():
        out = [gpu for gpu in host.gpus or () if gpu.readings.get("fabric_state") in _DOWN]
        if not out:
            continue
        runs = any("fabricmanager" in unit for unit in host.units or ()) or host.present.get(
            "/run/nvidia-fabricmanager/socket"
        )
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"{len(out)} GPUs of node {host.node} have not joined the NVLink fabric, so that CUDA says error 802; "
                + ("the fabric manager runs" if runs else "no fabric manager runs there")
            ),
            evidence=(
                host.cite("gpus", f"GPU {out[0].index}: fabric_state {out[0].readings['fabric_state']}"),
                host.cite("units", ", ".join(unit for unit in host.units or () if "nvidia" in unit)),
            ),
            remedy=_FABRIC_REMEDY,
            confidence=LIKELY if runs else CERTAIN,
            nodes=(host.node,),
        )


_FABRIC_REMEDY: Final = (
    Remedy("on the node:"),
    Remedy("systemctl status nvidia-fabricmanager; cat /var/log/fabricmanager.log"),
    Remedy("install the fabric manager of exactly the driver's version, then:"),
    remedies.restart_service("nvidia-fabricmanager"),
)
_NVLINK5: Final = re.compile(r"\bG?B[23]00\b")


@rule(
    "DRV-18",
    "Modules that the fabric of B200 needs are missing",
    Place.KERNEL,
    explains=("DRV-16",),
    rests_on=("NVIDIA/gpu-operator#2781",),
)
def no_infiniband(snapshot: Snapshot) -> Iterator[Finding]:
    """NVLink of the fifth generation is managed through InfiniBand devices: mlx5_ib and ib_umad must be loaded."""
    for host in snapshot.hosts.values():
        out = [
            gpu for gpu in host.gpus or () if _NVLINK5.search(gpu.name) and gpu.readings.get("fabric_state") in _DOWN
        ]
        lacks = [name for name in ("mlx5_ib", "ib_umad") if name not in (host.modules or {})]
        if not out or not lacks or host.modules is None:
            continue
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"on node {host.node} the fabric of its {out[0].name} can't start: the kernel modules "
                f"{' and '.join(lacks)} are not loaded"
            ),
            evidence=(
                host.cite("modules", ", ".join(sorted(host.modules))),
                host.cite("gpus", f"GPU {out[0].index}: fabric_state {out[0].readings['fabric_state']}"),
            ),
            remedy=(
                Remedy("on the node:"),
                Remedy("modprobe -a mlx5_ib ib_umad"),
                Remedy("and for every boot:"),
                Remedy("printf 'mlx5_ib\\nib_umad\\n' > /etc/modules-load.d/nvlink5.conf"),
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
        )


@rule(
    "DRV-19",
    "No /dev/nvidia-uvm",
    Place.DRIVER,
    explains=("DRV-01", "DPL-*"),
    rests_on=("NVIDIA/gpu-operator#2685",),
)
def no_uvm(snapshot: Snapshot) -> Iterator[Finding]:
    """nvidia-smi and the validator need no unified memory, CUDA does: its device file must be there."""
    for host in snapshot.hosts.values():
        devices = host.devices or ()
        if "nvidia0" in devices and "nvidiactl" in devices and "nvidia-uvm" not in devices:
            yield on_host(
                host,
                f"node {host.node} has no /dev/nvidia-uvm: nvidia-smi works there, and every CUDA program fails",
                "devices",
                remedy=(
                    Remedy("on the node:"),
                    Remedy("nvidia-modprobe -u -c=0"),
                    Remedy("if that fails:"),
                    Remedy("modprobe nvidia-uvm; dmesg | tail"),
                ),
            )


def switched_off(snapshot: Snapshot) -> Iterator[Finding]:
    """DRV-21: links below /dev/char are switched off, and are missing."""
    for pod in matching.pods_of_part(snapshot, VALIDATOR):
        host = snapshot.hosts.get(pod.node)
        for container in pod.containers:
            name = names.ENV_NO_DEVICE_LINKS
            if container.env.get(name, "").lower() != "true" or host is None or not host.devices:
                continue
            if "nvidia0" not in host.devices or any(device.startswith("char/195:") for device in host.devices):
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} may not make links below /dev/char on node {pod.node}, where there are none: running pods "
                    "lose their GPU at the next systemctl daemon-reload"
                ),
                evidence=(matching.cite_env(pod, container, name), host.cite("devices")),
                remedy=(
                    Remedy("take {} out of validator.driver.env of the ClusterPolicy", name),
                    Remedy("on node {}:", pod.node),
                    remedies.DEVICE_LINKS,
                ),
                confidence=CERTAIN,
                nodes=(pod.node,),
            )


_VGPU: Final = re.compile(r"(?:^GRID |-\d+[QCABV](?:ME)?$)")


def unlicensed(snapshot: Snapshot) -> Iterator[Finding]:
    """DRV-23: a vGPU without a licence."""
    for host in snapshot.hosts.values():
        for gpu in host.gpus or ():
            if _VGPU.search(gpu.name) and gpu.readings.get("vgpu_licensed") == 0:
                yield Finding(
                    subject=Subject("Node", host.node),
                    cause=f"the vGPU {gpu.name} of node {host.node} has no licence: it runs slowly after a while",
                    evidence=(host.cite("gpus", f"GPU {gpu.index} {gpu.name}: vgpu_licensed 0"),),
                    remedy=_LICENCE,
                    confidence=CERTAIN,
                    nodes=(host.node,),
                )


_LICENCE: Final = (
    Remedy("kubectl get clusterpolicy -o jsonpath='{.items[0].spec.driver.licensingConfig}'"),
    Remedy(
        "give it a Secret with gridd.conf and client_configuration_token.tok, and let the node reach the licence server"
    ),
)


@rule(
    "DRV-26",
    "GDS or GDRCopy with a driver that they don't go with",
    Place.DRIVER,
    explains=("DRV-02", "OPR-15"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def not_together(snapshot: Snapshot) -> Iterator[Finding]:
    """Precompiled drivers have neither; GDS needs the open kernel module."""
    for policy in (*snapshot.all("ClusterPolicy"), *snapshot.all("NVIDIADriver")):
        base = "spec.driver." if policy.kind == "ClusterPolicy" else "spec."
        wanted = [name for name in ("gds", "gdrcopy") if policy.at(f"spec.{name}.enabled") is True]
        field: str = f"{base}usePrecompiled"
        value: str | bool = True
        if "gds" in wanted and policy.at(field) is not True:
            field, value = f"{base}kernelModuleType", "proprietary"
        if not wanted or policy.at(field) != value:
            continue
        change = "usePrecompiled: false" if value is True else "kernelModuleType: open"
        yield Finding(
            subject=policy.subject,
            cause=(
                f"{policy} asks for {' and '.join(wanted)} together with {field} = {str(value).lower()}, "
                "which don't go together"
            ),
            evidence=(*(policy.cite(f"spec.{name}.enabled") for name in wanted), policy.cite(field)),
            remedy=(
                Remedy("kubectl edit {} {}  # {} in {}", policy.kind.lower(), policy.name, change, base.rstrip(".")),
            ),
            confidence=CERTAIN,
        )


ONE_RELEASE: Final = (
    Remedy("bring the GPU nodes to one release of the system"),
    Remedy(
        "or set driver.nvidiaDriverCRD.enabled=true and make an NVIDIADriver for each release, with a "
        "nodeSelector on feature.node.kubernetes.io/system-os_release.VERSION_ID"
    ),
)
"""What helps where nodes of several releases are to run one driver image."""


@rule(
    "DRV-29",
    "Two releases of the system, one driver",
    Place.DRIVER,
    explains=(*_BELOW, "KRN-01", "SCH-03"),
    by_hand=True,
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def two_systems(snapshot: Snapshot) -> Iterator[Finding]:
    """A driver's image is made for one release of the system. An operator with one DaemonSet of drivers, and an image
    by digest, give all GPU nodes the same.
    """
    pods = [
        pod for pod in matching.pods_of_part(snapshot, DRIVER, vendor=matching.NVIDIA) if pod.node in snapshot.nodes
    ]
    bad = [pod for pod in pods if not pod.ready and matching.failing(pod)]
    for image in dict.fromkeys(map(_image_of, bad)):
        mine = [pod for pod in bad if _image_of(pod) == image]
        good = {snapshot.nodes[pod.node].os_image: pod.node for pod in pods if pod.ready and _image_of(pod) == image}
        strange = [pod for pod in mine if (name := snapshot.nodes[pod.node].os_image) and name not in good]
        if image and good and len(strange) == len(mine):
            yield _strange(snapshot, strange, next(iter(good.values())))


def _image_of(pod: Pod) -> str:
    return next((one.image for one in pod.containers if not one.init), "")


def _strange(snapshot: Snapshot, pods: list[Pod], works_on: str) -> Finding:
    """The pods fail that have the image of a driver that works on a node of another release."""
    node, working_node = snapshot.nodes[pods[0].node], snapshot.nodes[works_on]
    failing = matching.failing(pods[0])
    return Finding(
        subject=pods[0].subject,
        cause=(
            f"{pods[0]} fails on node {node.name} with {node.os_image}; its image works on nodes with "
            f"{working_node.os_image}: a driver's image is made for one release of the system"
        ),
        evidence=(
            *(one.cite("image") for one in pods[0].containers if one.image == _image_of(pods[0])),
            node.cite("status.nodeInfo.osImage"),
            working_node.cite("status.nodeInfo.osImage"),
            *((failing.cite_status(),) if failing else ()),
        ),
        remedy=ONE_RELEASE,
        confidence=LIKELY,
        nodes=tuple(dict.fromkeys(pod.node for pod in pods)),
        pods=tuple(pod.path for pod in pods),
    )


RULES: Final = rules_of(
    Sign(
        id="DRV-16",
        title="The NVLink fabric is not up",
        place=Place.DRIVER,
        pattern=r"(?i)system not yet initialized",
        words="ystem not yet initialized",
        where=(LOG, STATUS),
        cause=(
            "{who}: CUDA error 802: the GPUs of the node have not joined the NVLink fabric; "
            "the fabric manager is down or of another version"
        ),
        remedy=_FABRIC_REMEDY,
        explain=(
            "On boards with NVSwitch CUDA works only once the fabric manager, of exactly the driver's version, has "
            "joined the GPUs. nvidia-smi works without."
        ),
        besides=fabric,
        rests_on=(
            "NVIDIA/gpu-operator#544",
            "NVIDIA/gpu-driver-container#735",
            "NVIDIA/NVSentinel#883",
            "NVIDIA/NVSentinel#891",
        ),
    ),
    Sign(
        id="DRV-21",
        title="Links below /dev/char are missing",
        place=Place.DRIVER,
        pattern=(
            r"(?i)(?:failed|error|unable).*(?:creat\w* |sym)links? .*/dev/char"
            r"|/dev/char/195:\d+.*(?:no such file|missing|failed)"
        ),
        words="/dev/char",
        where=(LOG, STATUS),
        parts=(VALIDATOR,),
        cause=(
            "{who} can't make the links below /dev/char: "
            "running pods lose their GPU at the next systemctl daemon-reload"
        ),
        remedy=(
            "on node {node}:",
            remedies.DEVICE_LINKS,
            "or inject devices by CDI: cdi.enabled=true in the ClusterPolicy",
        ),
        explain=(
            "systemd rebuilds a container's device rules from /dev/char/MAJOR:MINOR; "
            "NVIDIA's devices have no such links by themselves."
        ),
        explains=("RUN-21", "OPR-15", "DPL-18", "SCH-02"),
        besides=switched_off,
        rests_on=(
            "NVIDIA/gpu-operator#430",
            "NVIDIA/nvidia-container-toolkit#48",
            "NVIDIA/nvidia-container-toolkit#251",
            "NVIDIA/nvidia-container-toolkit#1227",
            "NVIDIA/nvidia-docker#1730",
        ),
    ),
    Sign(
        id="DRV-23",
        title="A vGPU without a licence",
        place=Place.DRIVER,
        pattern=r"License Status\s*:\s*Unlicensed|Failed to acquire license from",
        words="icense",
        where=(LOG,),
        cause="{who}: the vGPU has no licence",
        remedy=_LICENCE,
        explain="Without a licence a vGPU is slowed down. The guest needs a token and a way to the licence server.",
        besides=unlicensed,
        rests_on=(
            "NVIDIA/gpu-operator#220",
            "NVIDIA/gpu-operator#663",
            "NVIDIA/gpu-operator#628",
            "Azure/AKS#4870",
            "NVIDIA/nvidia-docker#1787",
        ),
    ),
)
