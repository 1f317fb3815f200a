"""kgpu's own operator in a lab: it runs the agents as pods, as in a real cluster, instead of the lab.

Its objects are the chart's with ``operator_values.yaml``; ``tools/lab_operator.py`` keeps what Helm makes of them in
``operator_objects.yaml``, so that no Helm is needed here. ``usage_objects.yaml`` has those that are new or other where
usage is recorded, by ``usage_values.yaml``.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from kgpu import __version__
from kgpu.base.errors import KubeError, LabError
from kgpu.formats.names import GPU_OPERATOR_NAMESPACE, IMAGE_REPOSITORY
from kgpu.kube.port import KubeApi, KubeDiscovery, Resource

VALUES: Final = Path(__file__).parent / "operator_values.yaml"
OBJECTS: Final = Path(__file__).parent / "operator_objects.yaml"
USAGE_VALUES: Final = Path(__file__).parent / "usage_values.yaml"
USAGE_OBJECTS: Final = Path(__file__).parent / "usage_objects.yaml"
SERVED_S: Final = 30.0  # a new kind is served within that
_MANAGER: Final = "kgpu-lab"
_POLL_S: Final = 0.1

Object = dict[str, Any]


def objects(*, usage: bool = False) -> list[Object]:
    """What the chart makes, without the definitions of its kinds, in an order in which it can be made.

    ``usage``: also records usage and follows GPUUsagePolicies, which may stop workloads in the namespace ``research``.
    """
    made = _read(OBJECTS)
    if not usage:
        return made
    other = {_key(obj): obj for obj in _read(USAGE_OBJECTS)}
    known = {_key(obj) for obj in made}
    added = [obj for key, obj in other.items() if key not in known]
    return [*_namespaces(added), *(other.get(_key(obj), obj) for obj in made), *added]


def _read(path: Path) -> list[Object]:
    import yaml

    return [obj for obj in yaml.safe_load_all(path.read_text()) if obj]


def _key(obj: Object) -> tuple[str, str, str]:
    about = obj["metadata"]
    return obj["kind"], about.get("namespace", ""), about["name"]


def _namespaces(wanted: Iterable[Object]) -> list[Object]:
    """The namespaces that these are in, besides the operator's, which every lab has."""
    names = {_key(obj)[1] for obj in wanted} - {"", GPU_OPERATOR_NAMESPACE}
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(names)]


def with_driver(wanted: Iterable[Object]) -> list[Object]:
    """The objects with a ClusterPolicy that installs drivers: kgpu's driver manager makes nodes ready for them.

    A simulated driver comes and goes in seconds, so that both are waited for in these.
    """
    rows = copy.deepcopy(list(wanted))
    policy = next(obj for obj in rows if obj["kind"] == "ClusterPolicy")
    manager = {"repository": IMAGE_REPOSITORY.rpartition("/")[0], "image": IMAGE_REPOSITORY.rpartition("/")[2]}
    driver = policy["spec"]["driver"]
    env = [{"name": "KGPU_UNLOAD_TIMEOUT_SECONDS", "value": "5s"}]
    driver |= {"enabled": True, "manager": {**manager, "version": __version__, "env": env}}
    driver["startupProbe"] = {**driver["startupProbe"], "initialDelaySeconds": 1, "periodSeconds": 1}
    return rows


def install(kubeconfig: Path, *, driver: bool = False, usage: bool = False) -> None:
    """Put the definitions and the objects into the cluster. Raises LabError, KubeError."""
    asyncio.run(_install(kubeconfig, driver=driver, usage=usage))


async def _install(kubeconfig: Path, *, driver: bool, usage: bool) -> None:
    from kgpu.kube.client import connect

    api = connect(str(kubeconfig))
    try:
        await apply(api, driver=driver, usage=usage)
    finally:
        await api.close()


class ApiWithDiscovery(KubeApi, KubeDiscovery, Protocol):
    """What ``apply`` needs."""


async def apply(api: ApiWithDiscovery, *, driver: bool = False, usage: bool = False) -> None:
    """The same over a connection; ``driver``: drivers are installed in containers; ``usage``: usage is recorded."""
    from kgpu.formats.crd.definitions import crds

    made = objects(usage=usage)
    definitions, rest = crds(), with_driver(made) if driver else made
    await _apply(api, definitions, await _served(api, definitions))
    await _apply(api, rest, await _served(api, rest))


async def _apply(api: KubeApi, wanted: Iterable[Object], served: dict[tuple[str, str], Resource]) -> None:
    for obj in wanted:
        await api.apply(served[obj["apiVersion"], obj["kind"]], obj, manager=_MANAGER)


async def _served(api: KubeDiscovery, wanted: Iterable[Object]) -> dict[tuple[str, str], Resource]:
    """The resources of these objects, once all of them are served. Raises LabError, KubeError."""
    kinds = {(obj["apiVersion"], obj["kind"]) for obj in wanted}
    until = time.monotonic() + SERVED_S
    while True:
        served = {(resource.api_version, resource.kind): resource for resource in (await api.discover()).resources}
        missing = kinds - served.keys()
        if not missing:
            return served
        if time.monotonic() > until:
            names = ", ".join(sorted(f"{kind} ({version})" for version, kind in missing))
            raise LabError(
                f"the API server does not serve {names}", "the kinds of the chart", "look into its log, then try again"
            )
        await asyncio.sleep(_POLL_S)


def problem(kubeconfig: Path) -> str:
    """Why the ClusterPolicy is not ready, by its condition, in one line; "" when it is ready or can't be read."""
    try:
        policy = asyncio.run(_policy(kubeconfig))
    except (KubeError, OSError):
        return ""
    status = policy.get("status") or {}
    rows = [condition for condition in status.get("conditions") or () if condition.get("type") == "Ready"]
    return "" if status.get("state") == "ready" else " ".join(str(condition.get("message", "")) for condition in rows)


async def _policy(kubeconfig: Path) -> Object:
    from kgpu.kube.client import connect
    from kgpu.kube.kinds import CLUSTER_POLICIES

    api = connect(str(kubeconfig))
    try:
        return await api.get(CLUSTER_POLICIES, "cluster-policy") or {}
    finally:
        await api.close()
