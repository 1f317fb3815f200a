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
from kgpu.kube.port import NODES, PODS, KubeApi, Object, Selector

_DRIVERS: Final = (names.COMPONENT_LABEL, names.DRIVER_COMPONENT)


async def wanted_driver(api: KubeApi, node: str) -> OperationDriver:
    """The driver that a DaemonSet asks for on a node.

    Raises KubeError, and ConfigError for a node that is not there, has no such DaemonSet, or several, or runs that
    driver already.
    """
    known = await api.get(NODES, node)
    if known is None:
        raise ConfigError(f"the cluster has no node {node:.100}", "the name of a node", "see `kubectl get nodes`")
    metadata = mapping(known.get("metadata"))
    listing = await api.list(DAEMON_SETS, selector=Selector(labels=(_DRIVERS,)))
    next_one = strings(metadata.get("annotations")).get(names.NEXT_DRIVER, "")
    fitting = _fitting(listing.items, strings(metadata.get("labels")), next_one)
    if len(fitting) != 1:
        found = ", ".join(sorted(_name(obj) for obj in fitting)) or "none"
        raise ConfigError(
            f"which driver {node} is to run is not known: the DaemonSets that install one there are {found}",
            "one DaemonSet with the label " + "=".join(_DRIVERS),
            "a driver of the host is upgraded on the host; `kgpu status` tells which drivers the policy installs",
        )
    (daemon_set,) = fitting
    wanted = revision_of(mapping(mapping(daemon_set.get("spec")).get("template")))
    running = await _running(api, node)
    if not next_one and running is not None and running.is_same(wanted):
        name = release_of(wanted.image) or wanted.image
        raise ConfigError(
            f"the driver's pod on {node} is of driver {name} already", "a node whose pod is of another one",
            "if another one is loaded: kgpu node maintain, delete that pod, and resume once the driver is there",
        )  # fmt: skip
    metadata = mapping(daemon_set.get("metadata"))
    return OperationDriver(
        namespace=text(metadata.get("namespace")), daemon_set=text(metadata.get("name")), digest=wanted.digest,
        image=wanted.image, version=release_of(wanted.image),
        from_version=release_of(running.image) if running is not None else "",
    )  # fmt: skip


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


async def _running(api: KubeApi, node: str) -> DriverRevision | None:
    """What the node's driver pod has, None without one."""
    listing = await api.list(PODS, selector=Selector(labels=(_DRIVERS,), fields=(("spec.nodeName", node),)))
    staying = [pod for pod in listing.items if not mapping(pod.get("metadata")).get("deletionTimestamp")]
    return revision_of(staying[0]) if staying else None
