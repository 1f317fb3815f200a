"""What rules share to recognise things by: resources of every vendor, the parts of a GPU stack, words and messages.

Nothing here goes by the names of objects alone, which users change: parts are known by images, labels and programs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.doctor.kinds import Container, Event, Node, Pod, containers_of, requests_of
from kgpu.doctor.model import Evidence
from kgpu.doctor.objects import Key, Obj, seconds
from kgpu.doctor.privileges import is_mighty
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import accelerators as resources
from kgpu.formats import names

# Resources: the names are the formats' own, which rules ask for here

NVIDIA: Final = names.NVIDIA
AMD: Final = names.AMD
GAUDI: Final = names.GAUDI
INTEL: Final = names.INTEL
is_accelerator = resources.is_accelerator
vendor_of = resources.vendor_of


def is_mig(resource: str) -> bool:
    return resource.startswith(names.MIG_RESOURCE_PREFIX)


def is_shared(resource: str) -> bool:
    return resource.endswith(names.SHARED_SUFFIX)


def accelerators(pod: Obj) -> dict[str, int]:
    """What a pod asks for of accelerators, by resource."""
    found = pod.requests if isinstance(pod, Pod) else requests_of(pod.map("spec"))
    return {name: amount for name, amount in found.items() if amount > 0 and is_accelerator(name)}


def uses_accelerators(pod: Obj) -> bool:
    """Whether a pod asks for accelerators, by resource or by claim."""
    return bool(pod.list("spec.resourceClaims")) or bool(accelerators(pod))


GPU_IMAGE: Final = re.compile(r"cuda|nvidia|pytorch|tensorflow|vllm|triton|tgi|-gpu\b", re.IGNORECASE)
"""Images with the libraries of a GPU in them, and those of programs that are hardly ever run without one."""
_GPU_WORDS: Final = re.compile(
    r"\b(?:nvidia|rocm|amd|hl|xpu)-smi\b|\btorchrun\b|torch\.distributed|\bdeepspeed\b|\bvllm\b|\bsglang\b|\bcuda",
    re.IGNORECASE,
)
"""Words of commands that start a GPU's own tools, or programs that begin by looking for one."""
_NO_DEVICES: Final = frozenset({"", "none", "void"})


def looks_for_gpus(pod: Pod) -> bool:
    """Whether a pod's program wants a GPU, whatever the pod asks for: by the images, the commands, or because NVIDIA's
    runtime is asked for devices, past the scheduler.
    """
    return names.RUNTIME_CLASS in pod.runtime_class or any(map(_wants_gpus, pod.containers))


def _wants_gpus(container: Container) -> bool:
    if container.env.get(names.ENV_VISIBLE_DEVICES, "") not in _NO_DEVICES or GPU_IMAGE.search(container.image):
        return True
    return _GPU_WORDS.search(" ".join(container.words)) is not None


def makes_accelerator_pods(maker: Obj) -> bool:
    """Whether the pods of a controller ask for accelerators, by resource or by claim."""
    amounts = (
        str(key)
        for containers in ("containers", "initContainers")
        for container in maker.maps(f"spec.template.spec.{containers}")
        for field in ("limits", "requests")
        for key in Obj(container).map(f"resources.{field}")
    )
    return bool(maker.list("spec.template.spec.resourceClaims")) or any(map(is_accelerator, amounts))


# Nodes

_PCI_LABELS: Final = (
    (NVIDIA, re.compile(r"feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]+_)*10de(?:_[0-9a-f]+)*\.present")),
    (
        AMD,
        re.compile(
            r"feature\.node\.kubernetes\.io/(?:pci-(?:03[0-9a-f]{2}_|1200_)?1002(?:_[0-9a-f]+)*\.present|amd-gpu)"
        ),
    ),
    (GAUDI, re.compile(r"feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]+_)*1da3(?:_[0-9a-f]+)*\.present")),
    (
        INTEL,
        re.compile(
            r"feature\.node\.kubernetes\.io/pci-03[0-9a-f]{2}_8086(?:_[0-9a-f]+)*\.present"
            r"|intel\.feature\.node\.kubernetes\.io/gpu"
        ),
    ),
)
_VENDOR_LABELS: Final = (
    (names.LABEL_GPU_PRESENT, NVIDIA),
    (names.LABEL_GPU_PRODUCT, NVIDIA),
    (names.LABEL_AMD_GPU_FAMILY, AMD),
)
_CLOUD_LABELS: Final = {
    names.LABEL_GCE_ACCELERATOR: (NVIDIA, re.compile(r"nvidia-.+")),
    names.LABEL_AWS_ACCELERATOR: (NVIDIA, re.compile(r"nvidia-.+")),
    "karpenter.k8s.aws/instance-gpu-manufacturer": (NVIDIA, re.compile(r"nvidia")),
    names.LABEL_AZURE_ACCELERATOR: (NVIDIA, re.compile(r"nvidia")),
    names.LABEL_INSTANCE_TYPE: (
        NVIDIA,
        re.compile(r"(?:p[2-6][a-z]*|g[3-6](?!ad)[a-z]*|gr6[a-z]*)\.\w+|(?:a[234]x?|g2)-.+|Standard_N[CD]\d.*"),
    ),
}
"""Labels by which clouds and autoscalers say what a machine has, before any discovery has run there."""
_TALOS: Final = "extensions.talos.dev/nvidia-"
_PCI_VENDORS: Final = {"10de": NVIDIA, "1002": AMD, "1da3": GAUDI}


def vendors_of(node: Node, snapshot: Snapshot | None = None) -> frozenset[str]:
    """Whose accelerators a node has, by resources, labels, and its host's PCI devices where they are known."""
    vendors = {vendor_of(name) for name in node.resources()} - {""}
    labels = node.labels
    for key, value in labels.items():
        if value == "true":
            vendors |= {vendor for vendor, pattern in _PCI_LABELS if pattern.fullmatch(key)}
    vendors |= {vendor for key, vendor in _VENDOR_LABELS if labels.get(key) not in (None, "false")}
    vendors |= {
        vendor for key, (vendor, values) in _CLOUD_LABELS.items() if key in labels and values.fullmatch(labels[key])
    }
    if any(key.startswith(_TALOS) for key in labels):
        vendors.add(NVIDIA)
    host = snapshot.hosts.get(node.name) if snapshot else None
    for device in (host.pci if host else None) or ():
        if device.vendor in _PCI_VENDORS and device.pci_class[:2] in ("03", "12"):
            vendors.add(_PCI_VENDORS[device.vendor])
    return frozenset(vendors)


def gpu_nodes(snapshot: Snapshot, vendor: str = "") -> list[Node]:
    """The nodes with accelerators (of a vendor), whether they are offered or not."""
    found = snapshot.once(_by_vendor)
    return [node for node, vendors in found if (vendor in vendors if vendor else vendors)]


def _by_vendor(snapshot: Snapshot) -> list[tuple[Node, frozenset[str]]]:
    return [(node, vendors_of(node, snapshot)) for node in snapshot.nodes.values()]


def pci_label(node: Node, vendor: str = NVIDIA) -> str:
    """The label of feature discovery that says that a vendor's device is there, "" for none."""
    patterns = [pattern for one, pattern in _PCI_LABELS if one == vendor]
    return next((key for key, said in node.labels.items() if said == "true" and patterns[0].fullmatch(key)), "")


def product(node: Node) -> str:
    """What a node's accelerators are called by its labels."""
    labels = node.labels
    keys = (
        names.LABEL_GPU_PRODUCT,
        names.LABEL_AMD_GPU_PRODUCT_NAME,
        names.LABEL_AMD_GPU_DEVICE_ID,
        names.LABEL_GAUDI_DEVICE_FAMILY,
    )
    return next((labels[key] for key in keys if labels.get(key)), "")


# Parts of a GPU stack

DRIVER: Final = "driver"
DRIVER_MANAGER: Final = "driver-manager"
TOOLKIT: Final = "toolkit"
VALIDATOR: Final = "validator"
PLUGIN: Final = "device-plugin"
GFD: Final = "gfd"
DCGM: Final = "dcgm"
EXPORTER: Final = "dcgm-exporter"
MIG_MANAGER: Final = "mig-manager"
MPS: Final = "mps-control-daemon"
NFD_WORKER: Final = "nfd-worker"
NFD_MASTER: Final = "nfd-master"
NFD_GC: Final = "nfd-gc"
NFD_TOPOLOGY: Final = "nfd-topology-updater"
OPERATOR: Final = "operator"
AGENT: Final = "agent"
DRA: Final = "dra-driver"
CONFIG_MANAGER: Final = "config-manager"


@dataclass(frozen=True, slots=True)
class Part:
    """How a part is known: any of a pattern over images, one over its program's words, or values of ``app`` labels."""

    name: str
    vendor: str
    image: re.Pattern[str] | None = None
    words: re.Pattern[str] | None = None
    apps: frozenset[str] = frozenset()


def _part(name: str, vendor: str, *, image: str = "", words: str = "", apps: str = "") -> Part:
    return Part(
        name, vendor,
        re.compile(image) if image else None, re.compile(words) if words else None, frozenset(apps.split()),
    )  # fmt: skip


PARTS: Final = (
    _part(AGENT, NVIDIA, words=r"^(?:kgpu )?agent(?: |$)|kgpu agent", apps="kgpu-agent"),
    _part(
        OPERATOR,
        NVIDIA,
        image=r"/gpu-operator[:@]",
        words=r"kgpu operator|^operator run|gpu-operator",
        apps="gpu-operator",
    ),
    _part(
        VALIDATOR,
        NVIDIA,
        words=r"nvidia-validator",
        apps="nvidia-operator-validator nvidia-cuda-validator nvidia-device-plugin-validator",
    ),
    _part(
        DRIVER,
        NVIDIA,
        image=r"nvidia[^ ]*/driver[:@]|/driver:\d{3}[^ :@]*-|/vgpu-driver|/nvidia-driver",
        words=r"nvidia-driver",
        apps="nvidia-driver-daemonset nvidia-driver",
    ),
    _part(
        TOOLKIT,
        NVIDIA,
        image=r"/container-toolkit[:@]",
        words=r"nvidia-toolkit",
        apps="nvidia-container-toolkit-daemonset",
    ),
    _part(MPS, NVIDIA, words=r"mps-control-daemon", apps="nvidia-device-plugin-mps-control-daemon"),
    _part(
        GFD,
        NVIDIA,
        image=r"/gpu-feature-discovery[:@]",
        words=r"gpu-feature-discovery|(?:^|kgpu )labels --daemon",
        apps="gpu-feature-discovery",
    ),
    _part(
        PLUGIN,
        NVIDIA,
        image=r"(?:nvidia|nvcr)[^ ]*/k8s-device-plugin[:@]|nvidia/k8s-device-plugin|nvidia-gpu-device-plugin",
        words=r"nvidia-device-plugin|(?:^|kgpu )device-plugin run",
        apps="nvidia-device-plugin-daemonset nvidia-device-plugin nvidia-gpu-device-plugin",
    ),
    _part(
        EXPORTER, NVIDIA, image=r"/dcgm-exporter[:@]", words=r"dcgm-exporter", apps="nvidia-dcgm-exporter dcgm-exporter"
    ),
    _part(DCGM, NVIDIA, image=r"/dcgm[:@]", words=r"nv-hostengine", apps="nvidia-dcgm"),
    _part(MIG_MANAGER, NVIDIA, image=r"/k8s-mig-manager[:@]", words=r"nvidia-mig-manager", apps="nvidia-mig-manager"),
    _part(
        DRA,
        NVIDIA,
        image=r"dra-driver",
        words=r"gpu-kubelet-plugin|compute-domain",
        apps="nvidia-dra-driver-gpu dra-driver-nvidia-gpu kgpu-dra-driver",
    ),
    _part(NFD_WORKER, "", words=r"nfd-worker"),
    _part(NFD_MASTER, "", words=r"nfd-master"),
    _part(NFD_TOPOLOGY, "", words=r"nfd-topology-updater"),
    _part(NFD_GC, "", words=r"nfd-gc"),
    _part(EXPORTER, AMD, image=r"rocm/device-metrics-exporter"),
    _part(
        PLUGIN,
        AMD,
        image=r"rocm/(?:amdgpu|k8s)-device-plugin(?!:labeller)",
        words=r"k8s-device-plugin -logtostderr",
        apps="amdgpu-dp-ds",
    ),
    _part(GFD, AMD, image=r"rocm/k8s-(?:device-plugin:labeller|node-labeller)"),
    _part(OPERATOR, AMD, image=r"rocm/gpu-operator"),
    _part(PLUGIN, GAUDI, image=r"habana[^ ]*device-plugin|intel-gaudi-device-plugin"),
    _part(PLUGIN, INTEL, image=r"intel/intel-gpu-plugin|intel-gpu-plugin"),
)
_SYSTEM: Final = "kube-system"
_HARMLESS: Final = frozenset({OPERATOR})
"""Parts that may be all that there is yet of a stack, and need no rights on a node."""
_APPS: Final = frozenset[str | None]().union(*(part.apps for part in PARTS))
_APP_LABELS: Final = ("app", names.NAME_LABEL, names.COMPONENT_LABEL, "k8s-app", "name")


def parts_of(owner: Obj) -> tuple[Part, ...]:
    """Which parts of a GPU stack a pod (or the template of a DaemonSet or Deployment) is."""
    labels: Mapping[str, Any]
    if isinstance(owner, Pod):
        labels, containers = owner.labels, owner.containers
    else:
        labels = owner.map("spec.template.metadata.labels")
        containers = tuple(containers_of(owner, "spec.template.spec", ""))
    apps = {label for key in _APP_LABELS if isinstance(label := labels.get(key), str)}
    mains = [container for container in containers if not container.init]
    by_program = set[int]().union(*(_by_program(container.image, " ".join(container.words)) for container in mains))
    if not by_program and _APPS.isdisjoint(apps):
        return ()
    parts = tuple(part for at, part in enumerate(PARTS) if at in by_program or part.apps & apps)
    if {GFD, MPS} & {part.name for part in parts if part.vendor == NVIDIA}:
        # These run from the device plugin's image and, by its chart, under its labels; only the program tells.
        parts = tuple(part for part in parts if part.name != PLUGIN or _by_words(part, mains))
    return parts


def _by_words(part: Part, mains: Iterable[Container]) -> bool:
    return part.words is not None and any(part.words.search(" ".join(one.words)) for one in mains)


@functools.lru_cache(maxsize=4096)  # a cluster runs many pods of few programs
def _by_program(image: str, words: str) -> frozenset[int]:
    """The parts, by their place in the table, that a container is by its image or its words."""
    return frozenset(
        at
        for at, part in enumerate(PARTS)
        if (part.image is not None and part.image.search(image)) or (part.words and part.words.search(words))
    )


def pods_of_part(snapshot: Snapshot, name: str, *, vendor: str = "", node: str = "") -> list[Pod]:
    """The pods that are a part (``PLUGIN``, ``DRIVER``, ...) of any vendor's stack, or of one's, on a node."""
    rows = snapshot.once(_parts).get(name, ())
    return [
        pod for pod, part in rows if (not vendor or part.vendor in ("", vendor)) and (not node or pod.node == node)
    ]  # fmt: skip


def parts_of_pod(snapshot: Snapshot, pod: Pod) -> tuple[Part, ...]:
    """``parts_of`` where that is believed, worked out once for each pod of a snapshot."""
    found = snapshot.once(_by_pod).get(pod.key)
    return parts_of(pod) if found is None else found


def _by_pod(snapshot: Snapshot) -> dict[Key, tuple[Part, ...]]:
    return {pod.key: believed(snapshot, pod) for pod in snapshot.pods.values()}


def believed(snapshot: Snapshot, owner: Obj) -> tuple[Part, ...]:
    """``parts_of`` of a pod, a DaemonSet or a Deployment, as far as it is believed.

    Anybody may give a pod an image, a label or a command. A part has rights on the node that no tenant is given, or is
    in a namespace of the stack (``homes``); one that needs none is also believed where no such namespace has one, and
    exporters are anybody's, of whom nothing is told but what they measure. What was not read from an API server has no
    uid, and is taken at its word, as is all where no part has such rights: then there is no stack that one could pass
    for, or whoever wrote the objects down has left their volumes out.
    """
    parts = _said(snapshot, owner)
    if not parts or not owner.uid or not snapshot.once(homes):
        return parts
    if owner.namespace in snapshot.once(trusted) or is_mighty(owner):
        return parts
    known = snapshot.once(_at_home)
    return tuple(part for part in parts if part.name == EXPORTER or (part.name in _HARMLESS and part.name not in known))


def homes(snapshot: Snapshot) -> frozenset[str]:
    """The namespaces of the GPU stack: where a ClusterPolicy says that its operator is, and where a part with rights on
    its node is made or runs.
    """
    policies = [one for one in snapshot.all("ClusterPolicy") if one.source not in snapshot.texts]
    owners = [one for one in (*snapshot.pods.values(), *snapshot.all("DaemonSet")) if one.source not in snapshot.texts]
    mighty = {one.namespace for one in owners if _said(snapshot, one) and is_mighty(one)}
    return frozenset({*mighty, *(one.text("status.namespace") for one in policies)} - {""})


def trusted(snapshot: Snapshot) -> frozenset[str]:
    """The namespaces in which nobody is a tenant: the stack's, and the cluster's own."""
    return snapshot.once(homes) | {_SYSTEM}


def _at_home(snapshot: Snapshot) -> frozenset[str]:
    """The names of the parts in the stack's namespaces."""
    inside = snapshot.once(trusted)
    owners = (*snapshot.pods.values(), *snapshot.all("Deployment"))
    there = (one for one in owners if one.namespace in inside or not one.uid)
    return frozenset(part.name for one in there for part in _said(snapshot, one))


def _said(snapshot: Snapshot, owner: Obj) -> tuple[Part, ...]:
    """``parts_of``, worked out once for each pod."""
    found = snapshot.once(_said_by_pods).get(owner.key) if isinstance(owner, Pod) else None
    return parts_of(owner) if found is None else found


def _said_by_pods(snapshot: Snapshot) -> dict[Key, tuple[Part, ...]]:
    return {pod.key: parts_of(pod) for pod in snapshot.pods.values()}


def _parts(snapshot: Snapshot) -> dict[str, list[tuple[Pod, Part]]]:
    found: dict[str, list[tuple[Pod, Part]]] = {}
    for pod in snapshot.pods.values():
        if pod.ended and pod.phase == "Succeeded":
            continue
        for part in parts_of_pod(snapshot, pod):
            found.setdefault(part.name, []).append((pod, part))
    return found


def is_part(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod is any part of a GPU stack."""
    return pod.key in snapshot.once(_part_keys)


def _part_keys(snapshot: Snapshot) -> frozenset[Key]:
    return frozenset(pod.key for rows in snapshot.once(_parts).values() for pod, _ in rows)


def daemon_sets_of_part(snapshot: Snapshot, name: str, *, vendor: str = "") -> list[Obj]:
    """The DaemonSets that bring a part."""
    rows = snapshot.once(_daemon_parts).get(name, ())
    return [obj for obj, part in rows if not vendor or part.vendor in ("", vendor)]


def _daemon_parts(snapshot: Snapshot) -> dict[str, list[tuple[Obj, Part]]]:
    found: dict[str, list[tuple[Obj, Part]]] = {}
    for obj in snapshot.all("DaemonSet"):
        for part in believed(snapshot, obj):
            found.setdefault(part.name, []).append((obj, part))
    return found


def latest(told: Iterable[Event]) -> dict[tuple[str, str, str], Event]:
    """The last event of each object, by its kind, namespace and name."""
    found: dict[tuple[str, str, str], Event] = {}
    for event in told:
        known = found.get(event.about)
        if known is None or known.when <= event.when:
            found[event.about] = event
    return found


# Words of the kubelet

IMAGE_WORDS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
CREATE_WORDS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
STARTING_WORDS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})


def failing(pod: Pod) -> Container | None:
    """The container at which a pod's start stands still or that keeps ending; init containers come first, and sidecars
    last. Whatever a container waits for counts, but for the words of an ordinary start.
    """
    for one in pod.blamed:
        ended = one.state == "terminated" and one.exit_code not in (0, None) and not one.ready
        if ended or one.waiting not in STARTING_WORDS:
            return one
    return None


def initialising(pod: Pod) -> Container | None:
    """The init container that a pod waits for, None when all are done; a sidecar only until it has started."""
    waits = (one for one in pod.containers if one.init and one.state == "running" and not one.ready)
    return next((one for one in waits if not (one.sidecar and one.started)), None)


def superseded(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod has ended and a later one of its owner does its work: what befell it is history."""
    if not pod.ended or not pod.owner:
        return False
    kind, _, name = pod.owner.partition("/")
    owner = snapshot.get(kind, name, pod.namespace)
    failed = owner.holding("Failed") if owner else None
    began = seconds(pod.created)
    if began is None or failed:
        return False
    done, alive = snapshot.once(_successors).get(_work(pod), (0.0, 0.0))
    # Times are whole seconds; but of those of one second, one that still runs is more likely to be its fellow.
    return max(done, alive) > began or (done == began and pod.phase == "Failed")


def _work(pod: Pod) -> tuple[str, str, str | None]:
    """Whose work a pod does: its owner's, and which part of it."""
    return pod.namespace, pod.owner, pod.labels.get(names.JOB_INDEX_LABEL)


def _successors(snapshot: Snapshot) -> dict[tuple[str, str, str | None], tuple[float, float]]:
    """For each piece of work when the latest pod that has done it was made, and the latest that is at it."""
    found: dict[tuple[str, str, str | None], tuple[float, float]] = {}
    for pod in snapshot.pods.values():
        if pod.owner and (pod.phase == "Succeeded" or pod.ready):
            made = seconds(pod.created) or 0.0
            done, alive = found.get(_work(pod), (0.0, 0.0))
            found[_work(pod)] = (max(done, made), alive) if pod.phase == "Succeeded" else (done, max(alive, made))
    return found


def cite_classes(snapshot: Snapshot, kind: str) -> Evidence:
    """The names that there are of a kind such as ``StorageClass``: that one is not among them."""
    there = sorted(one.name for one in snapshot.all(kind))
    return Evidence(object=f"{kind}es", value=", ".join(there[:8]) or "none")


def cite_env(owner: Obj, container: Container, name: str) -> Evidence:
    """A variable of a container."""
    value = container.env.get(name)
    return Evidence(
        str(owner), f"container {container.name}, env {name}", "<none>" if value is None else value, owner.source
    )
