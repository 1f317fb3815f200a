"""NVIDIA's driver DaemonSets, for nodes without a driver of their own: one per operating system, per kernel if drivers
are precompiled, and on OpenShift per version of RHCOS. The replaced operator chooses one image for all nodes by the
first of them.

Upgrades (``kgpu.operator.upgrades``) replace pods one by one (``OnDelete``), never a change here. A DaemonSet keeps its
name while it exists, whatever other pools come and go: another name would mean another driver installation. Nodes that
change the object of their driver (``driver_moves``) need both DaemonSets, the former one's and the next one's. Nodes
with a host driver have the label ``gpu.deploy.driver=pre-installed``, which no selector matches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final

from kgpu.base.plain import items, mapping, strings, text
from kgpu.formats import names
from kgpu.formats.operands import BY_NAME
from kgpu.operator.model import NvidiaDriver, Object, Policy
from kgpu.operator.objects import driver_settings, openshift, shape
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.driver_containers import CONTAINER, PROBE_FILE, PROBE_MAP
from kgpu.operator.objects.driver_mounts import files
from kgpu.operator.objects.driver_pod import COMPONENT, PROBE_SCRIPT, pod_spec
from kgpu.operator.objects.driver_settings import DriverSettings
from kgpu.operator.objects.pools import (
    Pool,
    Pools,
    hashed,
    kernel_name,
    pools,
    rhcos_name,
    short_name,
    takes_driver,
)
from kgpu.operator.objects.rbac import DRIVER_MANAGER_RULES, account

OPERAND: Final = BY_NAME["driver"]
STATE: Final = OPERAND.state
BASE: Final = OPERAND.daemon_set


def policy_pools(scene: Scene) -> Pools:
    """The pools of ClusterPolicy's driver."""
    by_kernel = bool(scene.policy.spec.driver.use_precompiled)
    nodes = (node for node in scene.observed.nodes if takes_driver(node))
    return pools(nodes, by_kernel=by_kernel, openshift=scene.observed.openshift is not None)


def driver_pools(scene: Scene, driver: NvidiaDriver) -> Pools:
    """The pools of an NVIDIADriver, made of the nodes that are labelled as its own or will be."""
    mine = (
        node
        for node in scene.observed.nodes
        if driver.name in (node.labels.get(names.LABEL_DRIVER_OWNER), node.next_owner) and takes_driver(node)
    )
    by_kernel = bool(driver.spec.use_precompiled)
    return pools(mine, by_kernel=by_kernel, openshift=scene.observed.openshift is not None)


def of_policy(scene: Scene) -> list[Object]:
    """The objects of ClusterPolicy's driver. Raises ConfigError."""
    wanted_pools = policy_pools(scene).pools
    if not wanted_pools:
        # No node needs a driver pod, so an invalid image that nobody runs is not reported.
        return []
    settings = dataclasses.replace(driver_settings.of_policy(scene), node_affinity=_not_yet_ours(scene))
    by_pool = policy_names(wanted_pools, scene.observed.daemon_sets)
    result = [*shared(scene), *_account(scene, OPERAND.account)]
    return result + [daemon_set(scene, settings, pool, by_pool[pool.key], OPERAND.account) for pool in wanted_pools]


def _account(scene: Scene, name: str, owner: NvidiaDriver | None = None) -> list[Object]:
    admitted = openshift.admits(scene, openshift.FOR_DRIVERS)
    return account(scene, name, STATE, cluster=DRIVER_MANAGER_RULES, namespaced=admitted, owner=owner)


def _not_yet_ours(scene: Scene) -> Object | None:
    """Keep the ClusterPolicy's pods off nodes that still have the driver of an NVIDIADriver. They would wait there for
    it to go, and the scheduler could remove it for them if their priority is higher.
    """
    held = {
        owner
        for node in scene.observed.nodes
        if node.next_owner is not None and (owner := node.labels.get(names.LABEL_DRIVER_OWNER))
    }
    if not held:
        return None
    others = {"key": names.LABEL_DRIVER_OWNER, "operator": "NotIn", "values": sorted(held)}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [others]}]}}


def of_driver(scene: Scene, driver: NvidiaDriver) -> list[Object]:
    """The objects of an NVIDIADriver, without those that all of them share (``shared``). Raises ConfigError."""
    settings = driver_settings.of_driver(scene, driver)
    result: list[Object] = []
    accounts: set[str] = set()
    for pool in driver_pools(scene, driver).pools:
        user = short_name(f"nvidia-{settings.driver_type}-driver-{driver.name}-{pool.os_tag}")
        if user not in accounts:
            accounts.add(user)
            result += _account(scene, user, driver)
        result.append(daemon_set(scene, settings, pool, pool_name(driver, pool), user))
    return result


def pool_name(driver: NvidiaDriver, pool: Pool) -> str:
    """The replaced operator's name: type, operating system, and a hash of the object's uid (and the kernel, or the
    version of RHCOS).
    """
    _, one_of_many = pool.key
    ending = hashed(f"{driver.uid}-{one_of_many}" if one_of_many else driver.uid)
    prefix = f"nvidia-{driver.spec.driver_type}-driver-{pool.os_tag}"
    return f"{prefix[: 63 - len(ending) - 1]}-{ending}"


def policy_names(wanted_pools: tuple[Pool, ...], live: Mapping[str, Object]) -> dict[tuple[str, str], str]:
    """DaemonSet names by ``Pool.key``: the plain name for a single pool, else one with the difference. Those of RHCOS
    have its version.

    A pool keeps the name that is in use for it.
    """
    if any(pool.kernel for pool in wanted_pools):
        return {pool.key: short_name(f"{BASE}-{kernel_name(pool.kernel)}-{pool.os_tag}") for pool in wanted_pools}
    of_rhcos = tuple(pool for pool in wanted_pools if pool.rhcos)
    names_by_pool = {pool.key: _rhcos_daemon_set(pool, of_rhcos, live) for pool in of_rhcos}
    return names_by_pool | _system_names(tuple(pool for pool in wanted_pools if not pool.rhcos), live)


def _rhcos_daemon_set(pool: Pool, every: tuple[Pool, ...], live: Mapping[str, Object]) -> str:
    """The name of a pool of RHCOS. The plain one stays where it was made before there were pools of versions: its pods
    are on the nodes, and two DaemonSets for one node can't both have one there.
    """
    own = short_name(f"{BASE}-{rhcos_name(pool.rhcos)}")
    if BASE not in live or _pods(live.get(own, {})):
        return own
    bound = strings(_template_spec(live[BASE]).get("nodeSelector")).get(names.NFD_OSTREE_VERSION, "")
    alone = len(every) == 1 and _system_of(live[BASE], {pool.os_tag}) == pool.os_tag
    return BASE if bound == pool.rhcos or (not bound and alone) else own


def _system_names(wanted_pools: tuple[Pool, ...], live: Mapping[str, Object]) -> dict[tuple[str, str], str]:
    tags = {pool.os_tag for pool in wanted_pools}
    plain = _system_of(live[BASE], tags) if BASE in live else ""
    result = {}
    for pool in wanted_pools:
        own = short_name(f"{BASE}-{pool.os_tag}")
        takes_plain = plain == pool.os_tag or (len(wanted_pools) == 1 and own not in live)
        result[pool.key] = BASE if takes_plain else own
    return result


def _system_of(live: Object, tags: set[str]) -> str:
    """The operating system of a live driver DaemonSet, from its label or else its image's tag; "" if unknown."""
    template = mapping(mapping(mapping(live).get("spec")).get("template"))
    labels = mapping(mapping(template.get("metadata")).get("labels"))
    if label := text(labels.get(names.LABEL_NODE_OS_VERSION)):
        return label
    for container in items(_template_spec(live).get("containers")):
        image = text(mapping(container).get("image"))
        for tag in sorted(tags):
            if image.endswith(f"-{tag}"):
                return tag
    return ""


def _template_spec(live: Object) -> Mapping[str, Any]:
    return mapping(mapping(mapping(mapping(live).get("spec")).get("template")).get("spec"))


def daemon_set(scene: Scene, settings: DriverSettings, pool: Pool, name: str, user: str) -> Object:
    """The DaemonSet of one pool."""
    paths = shape.paths(scene.policy)
    parts = openshift.parts_of(scene, pool, scene.observed.daemon_sets.get(name))
    own = {
        "app": name,
        names.COMPONENT_LABEL: COMPONENT,
        names.LABEL_NODE_OS_VERSION: pool.os_tag,
        names.LABEL_PRECOMPILED: "true" if pool.kernel else "false",
        **({names.LABEL_PRECOMPILED_KERNEL: pool.kernel} if pool.kernel else {}),
        **openshift.toolkit_labels(parts.toolkit),
    }
    of_set = {openshift.RHCOS_LABEL: parts.toolkit.rhcos} if parts.toolkit else {}
    annotations = {
        "kubectl.kubernetes.io/default-container": CONTAINER,
        **settings.annotations,
        names.DRIVER_DIGEST_VERSION: names.THIS_DRIVER_DIGEST_VERSION,
    }
    return scene.new_object(
        "DaemonSet",
        name,
        state=STATE,
        owner=settings.owner,
        labels={**own, **of_set},
        spec={
            "selector": {"matchLabels": {"app": name}},
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {"labels": {**settings.labels, **own}, "annotations": annotations},
                "spec": pod_spec(
                    settings,
                    pool,
                    paths,
                    account=user,
                    files=files(settings, pool, scene.observed.config_maps, trusted_ca=parts.trusted_ca),
                    openshift=parts,
                ),
            },
        },
    )


def probe_map(scene: Scene) -> Object:
    """The script that checks whether a driver is ready; all driver pods share it, so the policy owns it."""
    return scene.new_object(
        "ConfigMap",
        PROBE_MAP,
        state=STATE,
        labels={"app": BASE, names.COMPONENT_LABEL: COMPONENT},
        data={PROBE_FILE: PROBE_SCRIPT},
    )


def shared(scene: Scene) -> list[Object]:
    """The objects that the pods of all drivers share."""
    return [probe_map(scene), *openshift.trusted_ca(scene, STATE)]


def leftovers(scene: Scene, rendered: list[Object]) -> bool:
    """True if a driver DaemonSet that is no longer wanted has pods on nodes still, or has left some there.

    Its nodes may only have lost their feature labels for a moment, or keep their driver until their upgrade; without
    its pods they would lose their driver. Those that it has left need their account until then.
    """
    wanted = {str(obj["metadata"]["name"]) for obj in rendered if obj["kind"] == "DaemonSet"}
    if any(pod.holds and pod.daemon_set not in wanted for pod in scene.observed.driver_pods):
        return True
    gone = wanted | orphans(scene.policy, scene.observed.daemon_sets, wanted)
    return any(
        name not in gone and _is_driver(live) and _pods(live) > 0 for name, live in scene.observed.daemon_sets.items()
    )


def orphans(policy: Policy, live: Mapping[str, Object], wanted: Collection[str]) -> frozenset[str]:
    """DaemonSets of the ClusterPolicy's driver that go without their pods: NVIDIADrivers take these over one by one, or
    the ClusterPolicy's own for precompiled drivers if the former were not, and the other way round.
    """
    settings = policy.spec.driver
    if settings.enabled is False:
        return frozenset()
    former = frozenset(name for name in live if name.startswith(BASE) and name not in wanted)
    if settings.use_nvidia_driver_crd:
        return former
    if not any(name.startswith(BASE) for name in wanted):
        return frozenset()
    precompiled = bool(settings.use_precompiled)
    return frozenset(name for name in former if _is_precompiled(live[name]) != precompiled)


def _is_precompiled(live: Object) -> bool:
    template = mapping(mapping(live.get("spec")).get("template"))
    return strings(mapping(template.get("metadata")).get("labels")).get(names.LABEL_PRECOMPILED) == "true"


def _is_driver(live: Object) -> bool:
    labels = mapping(mapping(mapping(live).get("metadata")).get("labels"))
    return labels.get(names.LABEL_OPERATOR_STATE) == STATE


def _pods(live: Object) -> int:
    status = mapping(mapping(live).get("status"))
    counts = (status.get("desiredNumberScheduled"), status.get("currentNumberScheduled"))
    return max((count for count in counts if isinstance(count, int)), default=0)
