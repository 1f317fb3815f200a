"""Runs all controllers side by side: one that fails is restarted after a pause, and the others go on."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice
from kgpu.base.supervise import RoleFunction, RoleHandle, Supervisor
from kgpu.kube.port import KubeApi
from kgpu.lab.embedded.controllers.cluster import ControllerContext, wall_clock
from kgpu.lab.embedded.controllers.controller import ObjectController
from kgpu.lab.embedded.controllers.cronjob import CronJobController
from kgpu.lab.embedded.controllers.daemonset import DaemonSetController
from kgpu.lab.embedded.controllers.deployment import DeploymentController
from kgpu.lab.embedded.controllers.devicetainteviction import DeviceTaintEvictionController
from kgpu.lab.embedded.controllers.disruption import DisruptionController
from kgpu.lab.embedded.controllers.endpoints import EndpointController, EndpointSliceController
from kgpu.lab.embedded.controllers.gc import GarbageCollector
from kgpu.lab.embedded.controllers.hpa import HorizontalController
from kgpu.lab.embedded.controllers.job import JobController
from kgpu.lab.embedded.controllers.namespace import NamespaceController
from kgpu.lab.embedded.controllers.node_plan import GRACE
from kgpu.lab.embedded.controllers.nodelifecycle import NodeLifecycleController
from kgpu.lab.embedded.controllers.nodettl import NodeTtlController
from kgpu.lab.embedded.controllers.pacing import PacedApi
from kgpu.lab.embedded.controllers.podgc import PodGarbageCollector
from kgpu.lab.embedded.controllers.policystatus import PolicyStatusController
from kgpu.lab.embedded.controllers.quota import QuotaController
from kgpu.lab.embedded.controllers.replicaset import ReplicaSetController, ReplicationController
from kgpu.lab.embedded.controllers.resourceclaim import ResourceClaimController
from kgpu.lab.embedded.controllers.served import ServedKinds
from kgpu.lab.embedded.controllers.serviceaccount import RootCaPublisher, ServiceAccountController
from kgpu.lab.embedded.controllers.statefulset import StatefulSetController
from kgpu.lab.embedded.controllers.tainteviction import TaintEvictionController
from kgpu.lab.embedded.controllers.ttl import TtlAfterFinishedController
from kgpu.lab.embedded.controllers.volumes import VolumeController

log = logging.getLogger(__name__)

_STOP: Final = 5.0  # seconds for all of them to end


def controllers(
    cluster: ControllerContext,
    *,
    root_ca: str = "",
    node_grace: float = GRACE,
    taint_rules: bool = False,
    volumes: Path | None = None,
) -> list[ObjectController]:
    """All of them, not yet running.

    ``root_ca`` (PEM) is the API server's CA for pods; ``node_grace`` the seconds of silence after which a node's state
    is unknown; ``taint_rules``: DeviceTaintRules are served. ``volumes``: the folder of the lab's own volumes.
    """
    kinds = ServedKinds(cluster)
    return [
        NamespaceController(cluster, kinds),
        ServiceAccountController(cluster),
        RootCaPublisher(cluster, root_ca),
        ReplicaSetController(cluster),
        ReplicationController(cluster),
        DeploymentController(cluster),
        StatefulSetController(cluster),
        DaemonSetController(cluster),
        JobController(cluster),
        CronJobController(cluster),
        TtlAfterFinishedController(cluster),
        EndpointController(cluster),
        EndpointSliceController(cluster),
        HorizontalController(cluster, kinds),
        DisruptionController(cluster),
        QuotaController(cluster, kinds),
        VolumeController(cluster, volumes),
        ResourceClaimController(cluster),
        NodeLifecycleController(cluster, grace=node_grace),
        NodeTtlController(cluster),
        TaintEvictionController(cluster),
        DeviceTaintEvictionController(cluster, rules=taint_rules),
        PodGarbageCollector(cluster),
        PolicyStatusController(cluster),
        GarbageCollector(cluster, kinds),
    ]


async def run(
    api: KubeApi,
    *,
    root_ca: str = "",
    node_grace: float = GRACE,
    taint_rules: bool = False,
    volumes: Path | None = None,
    now: Callable[[], dt.datetime] = wall_clock,
) -> None:
    """Run all controllers against ``api`` until cancelled; ``now`` is the wall clock, in UTC. See ``controllers``."""
    cluster = ControllerContext(PacedApi(api), now=now)
    supervisor = Supervisor(on_advice=_log)

    async def record(handle: RoleHandle) -> None:
        handle.running()
        await cluster.recorder.run()

    roles: dict[str, RoleFunction] = {"event-recorder": record}
    roles |= {
        controller.name: controller.run
        for controller in controllers(
            cluster, root_ca=root_ca, node_grace=node_grace, taint_rules=taint_rules, volumes=volumes
        )
    }
    try:
        for name, function in roles.items():
            supervisor.start(name, function)
        await asyncio.Event().wait()
    finally:
        await supervisor.stop(_STOP)
        await cluster.close()


def _log(advice: Advice) -> None:
    log.warning("%s", advice.one_line())
