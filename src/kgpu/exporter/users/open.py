"""Opens the sources of who uses what that the exporter's flags ask for, and no others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.clock import Clock
from kgpu.exporter.config import ExporterOptions
from kgpu.exporter.settings import Virtual
from kgpu.exporter.users.containers import Containers, ask_api
from kgpu.exporter.users.kubelet_users import KubeletUsers, UserSources
from kgpu.formats.names import KUBELET_DEVICE_PLUGIN_DIR
from kgpu.formats.simulated import state_file
from kgpu.hw.port import Reader
from kgpu.kube.owners import gang_of, owner_of
from kgpu.kube.port import PODS, KubeApi, Object, Resource, Selector

if TYPE_CHECKING:
    from kgpu.exporter.users.followed_objects import FollowedObjects
    from kgpu.exporter.users.reserved_claims import ReservedClaims

CHECKPOINT: Final = "kubelet_internal_checkpoint"
_PODS: Final = Resource(PODS.group, PODS.version, PODS.plural, PODS.kind, metadata_only=True)


def open_users(
    options: ExporterOptions,
    reader: Reader,
    *,
    tell: AdviceSink,
    api: KubeApi | None = None,
    node: str = "",
    host_root: Path = Path("/"),
    driver_root: Path | None = None,
    plugins_folder: Path = Path(KUBELET_DEVICE_PLUGIN_DIR),
    namespace: str = "",
    facts: bool = False,
    clock: Clock | None = None,
) -> KubeletUsers:
    """``host_root`` is the node's / as this process sees it, ``plugins_folder`` the kubelet's of device plugins,
    ``namespace`` that of kgpu's own pods. ``facts``: the pods' uids and labels are wanted, whatever the options say.

    The pods' own labels and uids, and the devices of claims, need ``api`` and the ``node``'s name; without them a
    warning says so, and everything else is shown.
    """
    jobs = Path(options.jobs_dir) if options.jobs_dir else None
    if not options.kubernetes:
        return KubeletUsers(UserSources(reader=reader, jobs=jobs), tell=tell, clock=clock)
    from kgpu.kubelet.pod_resources import PodResources

    known = api if node else None
    facts = facts or options.pod_labels or options.pod_uid or options.virtual_gpus is Virtual.ALWAYS
    if known is None and (facts or options.dra):
        tell(_without(facts, options.dra, node))
    simulated = any(state_file(str(root)) for root in (driver_root, host_root) if root)
    return KubeletUsers(
        UserSources(
            reader=reader,
            holdings=PodResources(Path(options.pod_resources)),
            containers=Containers(
                root=host_root,
                ask=partial(ask_api, known, node) if known else None,
                simulated=simulated,
                namespace=namespace,
                clock=clock,
            ),
            pods=_pods(known, node, clock) if known and facts else None,
            slices=_slices(known, node, clock) if known and options.dra else None,
            reserved=_reserved(known, clock) if known and options.dra else None,
            jobs=jobs,
            checkpoint=plugins_folder / CHECKPOINT,
            also=options.resources,
        ),
        tell=tell,
        clock=clock,
    )


def _pods(api: KubeApi, node: str, clock: Clock | None) -> FollowedObjects:
    from kgpu.exporter.users.followed_objects import FollowedObjects

    selector = Selector(fields=(("spec.nodeName", node),))
    return FollowedObjects(api, (_PODS,), selector, project=_brief, clock=clock)


def _slices(api: KubeApi, node: str, clock: Clock | None) -> FollowedObjects:
    from kgpu.exporter.users.claims import SLICES, of_node, project
    from kgpu.exporter.users.followed_objects import FollowedObjects

    return FollowedObjects(api, SLICES, of_node(node), project=project, clock=clock)


def _reserved(api: KubeApi, clock: Clock | None) -> ReservedClaims:
    from kgpu.exporter.users.reserved_claims import ReservedClaims

    return ReservedClaims(api, clock=clock)


def _brief(pod: Object) -> Object:
    about = pod["metadata"]
    return {
        "metadata": {
            key: about[key] for key in ("name", "namespace", "uid", "labels", "resourceVersion") if key in about
        },
        "owner": owner_of(pod),
        "gang": str(gang_of(pod) or ""),
    }


def _without(facts: bool, dra: bool, node: str) -> Advice:
    parts = [*(["the pods' labels and uids"] if facts else []), *(["the devices of resource claims"] if dra else [])]
    return Advice(
        subject="",
        what=f"{' and '.join(parts)} are not shown",
        why="no API server is configured" if node else "this node's name is not known",
        severity=Severity.WARNING,
        remedy="run it in a pod with a service account, or give a kubeconfig" if node else "set NODE_NAME",
        reason="UsersNotKnown",
    )
