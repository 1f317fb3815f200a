"""Defaults of pods and of the pod specs inside workloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kgpu.base.quantity import ZERO, Quantity
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.defaults.fill import both, fixed, whole_milli

POD_LEVEL: Final = ("cpu", "memory")
_TAG: Final = re.compile(r"^(?P<name>.+?)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>[^@/]+))?$")
_NAME: Final = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
)
_DIGEST: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")  # fmt: skip


def image_tag(image: str) -> str:
    """The tag of an image reference: ``latest`` when it names neither tag nor digest; "" when it is no reference or has
    only a digest.
    """
    shape = _TAG.match(image)
    if shape is None or re.fullmatch(r"[a-f0-9]{64}", image):
        return ""
    name, tag, digest = shape["name"], shape["tag"], shape["digest"]
    host, slash, rest = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost" or host.lower() != host):
        if not _HOST.fullmatch(host):
            return ""
        name = rest
    if not _NAME.fullmatch(name) or (digest and not _DIGEST.fullmatch(digest)):
        return ""
    return tag or ("" if digest else "latest")


def _pull_policy(image: str) -> str:
    return "Always" if image_tag(image) == "latest" else "IfNotPresent"


def containers(spec: Object) -> Iterator[Object]:
    """The containers of a pod spec that get defaults: main and init ones."""
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _container(container: Object) -> None:
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    if not container.get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not container.get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"


VOLUME_SOURCES: Final = (
    "hostPath", "emptyDir", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "secret", "nfs", "iscsi",
    "glusterfs", "persistentVolumeClaim", "rbd", "flexVolume", "cinder", "cephfs", "flocker", "downwardAPI", "fc",
    "azureFile", "configMap", "vsphereVolume", "quobyte", "azureDisk", "photonPersistentDisk", "projected",
    "portworxVolume", "scaleIO", "storageos", "csi", "ephemeral", "image",
)  # fmt: skip


def _volume(volume: Object) -> None:
    if not any(source in volume for source in VOLUME_SOURCES):
        volume["emptyDir"] = {}


def _image_source(source: Object) -> None:
    if not source.get("pullPolicy"):
        source["pullPolicy"] = _pull_policy(source.get("reference", ""))


def _pod(obj: Object) -> None:
    spec = obj["spec"]
    for container in containers(spec):
        resources = container["resources"]
        limits = resources.get("limits")
        if limits:
            resources["requests"] = {**limits, **resources.get("requests", {})}
    if spec.get("resources"):
        _pod_level(spec, spec["resources"])
    spec.setdefault("enableServiceLinks", True)
    if spec.get("hostNetwork"):
        for container in containers(spec):
            for port in container.get("ports", ()):
                if not port.get("hostPort") and port.get("containerPort"):
                    port["hostPort"] = port["containerPort"]


def _pod_level(spec: Object, resources: Object) -> None:
    """Set the requests of the whole pod: the sum of the containers' requests, else the pod's limit."""
    limits = resources.get("limits") or {}
    if not limits:
        return
    requests = dict(resources.get("requests") or {})
    for name, amount in sum_requests(spec).items():
        if name not in requests and name in POD_LEVEL:
            requests[name] = str(amount)
    for name, amount in limits.items():
        if name not in requests and (name in POD_LEVEL or name.startswith("hugepages-")):
            requests[name] = amount
    if requests:
        resources["requests"] = requests


def sum_requests(spec: Object, field: str = "requests") -> dict[str, Quantity]:
    """What a pod's containers request together: the larger of the largest init container and the sum of the main ones,
    with the sidecars (init containers with restartPolicy Always) counted in both. Source: component-helpers' resource
    helper.
    """
    total = _sum(container["resources"].get(field, {}) for container in spec.get("containers") or ())
    sidecars: dict[str, Quantity] = {}
    peak: dict[str, Quantity] = {}
    for container in spec.get("initContainers") or ():
        own = container["resources"].get(field, {})
        if container.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, own))
            total = _sum((total, own))
            at_start = sidecars
        else:
            at_start = _sum((sidecars, own))
        for name, amount in at_start.items():
            peak[name] = max(peak.get(name, amount), amount)
    for name, amount in peak.items():
        if amount > total.get(name, ZERO) or name not in total:
            total[name] = amount
    return total


def _sum(lists: Iterable[dict[str, str] | dict[str, Quantity]]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for amounts in lists:
        for name, amount in amounts.items():
            parsed = amount if isinstance(amount, Quantity) else Quantity.parse(amount)
            known = total.get(name)
            total[name] = parsed if known is None else known + parsed
    return total


def _pod_spec(spec: Object) -> None:
    for name, value in _POD_SPEC:
        if spec.get(name) in (None, ""):
            spec[name] = value
    spec.setdefault("securityContext", {})
    # The deprecated alias follows the field.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account


_POD_SPEC: Final = (
    ("dnsPolicy", "ClusterFirst"),
    ("restartPolicy", "Always"),
    ("terminationGracePeriodSeconds", 30),
    ("schedulerName", "default-scheduler"),
)


def _probe(probe: Object) -> None:
    for name, value in _PROBE:
        if not probe.get(name):
            probe[name] = value


_PROBE: Final = (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3))
_MODE: Final = fixed(defaultMode=0o644)

DEFAULTS: Final[dict[str, Callable[[Object], None]]] = {
    "core.v1.Pod": _pod,
    "core.v1.PodSpec": both(_pod_spec, whole_milli("overhead")),
    "core.v1.Container": _container,
    "core.v1.EphemeralContainer": _container,
    "core.v1.ResourceRequirements": whole_milli("limits", "requests"),
    "core.v1.VolumeResourceRequirements": whole_milli("limits", "requests"),
    "core.v1.Probe": _probe,
    "core.v1.HTTPGetAction": fixed(path="/", scheme="HTTP"),
    "core.v1.GRPCAction": fixed(service=""),
    "core.v1.ObjectFieldSelector": fixed(apiVersion="v1"),
    "core.v1.FileKeySelector": fixed(optional=False),
    "core.v1.Volume": _volume,
    "core.v1.SecretVolumeSource": _MODE,
    "core.v1.ConfigMapVolumeSource": _MODE,
    "core.v1.DownwardAPIVolumeSource": _MODE,
    "core.v1.ProjectedVolumeSource": _MODE,
    "core.v1.ServiceAccountTokenProjection": fixed(expirationSeconds=3600),
    "core.v1.AzureDiskVolumeSource": fixed(readOnly=False),
    "core.v1.ImageVolumeSource": _image_source,
}


def _host_path(source: Object) -> None:
    source.setdefault("type", "")


DEFAULTS["core.v1.HostPathVolumeSource"] = _host_path
