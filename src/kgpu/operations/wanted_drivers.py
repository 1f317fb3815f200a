"""Which driver a node is to run, by the DaemonSet that installs one there: for people who ask for an upgrade."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import mapping, strings, text
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationDriver
from kgpu.formats.driver_revision import DriverRevision, release_of, revision_of
from kgpu.kube.kinds import DAEMON_SETS
from kgpu.kube.operator_namespace import operator_namespace
from kgpu.kube.port import NODES, PODS, KubeApi, Object, Selector
from kgpu.operations.driver_pods import DriverPod, driver_on, read_driver_pod

_DRIVERS: Final = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)


async def wanted_driver(api: KubeApi, node: str) -> OperationDriver:
    """The driver that a DaemonSet of the operator's namespace asks for on a node.

    Anybody who may make pods can give them and their DaemonSet a driver's labels: other namespaces say nothing here.
    Raises KubeError, and ConfigError for a node that is not there, has no such DaemonSet, or several, or runs that
    driver already.
    """
    known = await api.get(NODES, node)
    if known is None:
        raise ConfigError(f"the cluster has no node {node:.100}", "the name of a node", "see `kubectl get nodes`")
    metadata, namespace = mapping(known.get("metadata")), await operator_namespace(api)
    listing = await api.list(DAEMON_SETS, namespace=namespace, selector=Selector(labels=(_DRIVERS,)))
    next_one = strings(metadata.get("annotations")).get(names.NEXT_DRIVER, "")
    fitting = _fitting(listing.items, strings(metadata.get("labels")), next_one)
    if len(fitting) != 1:
        found = ", ".join(sorted(_name(obj) for obj in fitting)) or "none"
        raise ConfigError(
            f"which driver {node} is to run is not known: the DaemonSets that install one there are {found}",
            f"one DaemonSet in namespace {namespace} with the label " + "=".join(_DRIVERS),
            "a driver of the host is upgraded on the host; `kgpu status` tells which drivers the policy installs",
        )
    (daemon_set,) = fitting
    metadata = mapping(daemon_set.get("metadata"))
    wanted = revision_of(mapping(mapping(daemon_set.get("spec")).get("template")))
    running = await _running(api, namespace, node, text(metadata.get("name")))
    if not next_one and _runs(running, wanted):
        name = release_of(wanted.image) or wanted.image
        raise ConfigError(
            f"the driver's pod on {node} is of driver {name} already", "a node whose pod is of another one",
            "if another one is loaded: kgpu node maintain, delete that pod, and resume once the driver is there",
        )  # fmt: skip
    return OperationDriver(
        namespace=text(metadata.get("namespace")), daemon_set=text(metadata.get("name")), digest=wanted.digest,
        image=wanted.image, version=release_of(wanted.image),
        from_version=release_of(running.revision.image) if running is not None else "",
    )  # fmt: skip


def _runs(pod: DriverPod | None, wanted: DriverRevision) -> bool:
    """Whether the pod has that driver at work. One that is not ready may have failed at it, which is worth a retry."""
    return pod is not None and pod.ready and bool(pod.daemon_set) and pod.revision.is_same(wanted)


def _fitting(daemon_sets: Iterable[Object], labels: Mapping[str, str], next_one: str) -> list[Object]:
    """Those that are to install the node's driver: ``next_one``, where it is about to get another's, "" elsewhere."""
    if next_one:
        return [obj for obj in daemon_sets if mapping(obj.get("metadata")).get("name") == next_one]
    return [obj for obj in daemon_sets if _selector(obj).items() <= labels.items()]


def _selector(daemon_set: Object) -> dict[str, str]:
    """The labels of the nodes that get its pods."""
    template = mapping(mapping(daemon_set.get("spec")).get("template"))
    return strings(mapping(template.get("spec")).get("nodeSelector"))


def _name(obj: Object) -> str:
    metadata = mapping(obj.get("metadata"))
    return f"{text(metadata.get('namespace'))}/{text(metadata.get('name'))}"


async def _running(api: KubeApi, namespace: str, node: str, daemon_set: str) -> DriverPod | None:
    """The node's driver pod, None without one. Those of other namespaces are none: anybody can label a pod."""
    selector = Selector(labels=(_DRIVERS,), fields=(("spec.nodeName", node),))
    listing = await api.list(PODS, namespace=namespace, selector=selector)
    pod = driver_on(map(read_driver_pod, listing.items), node, daemon_set)
    return pod if pod is not None and not pod.ending else None
