"""Carries out the writes of a step, one request each.

A record is written on the version that the decision was based on: the API server refuses it if somebody has changed it
since, and the next step sees the change. On a node only the engine's own fields are written, and the uid makes sure
that no later node of the same name gets them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kgpu.base.backoff import BackoffPolicy
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationType
from kgpu.formats.node_order import encode
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS, KubeApi, KubeRefusedError, Object
from kgpu.operations import act_pods
from kgpu.operations.config import DriverPaths
from kgpu.operations.model import Answer, Delete, DeleteDriverPod, EndAct, Evict, HoldNode, Record, StartAct

log = logging.getLogger(__name__)

ACT_DEADLINE: Final = 3600
"""Seconds after which the kubelet ends an act's pod that has not finished."""
EVICT_AGAIN: Final = BackoffPolicy(first=5.0, cap=60.0, factor=2.0, jitter=0.3)
_BUDGET: Final = "DisruptionBudget"
_DONE: Final = {"evict": "evicted", "delete": "deleted"}
_TERMINATING: Final = "NamespaceTerminating"
_SEVERAL: Final = "more than one PodDisruptionBudget"


async def record(api: KubeApi, write: Record) -> Object:
    """Write a status. Raises KubeError, a conflict if the operation has changed since it was read."""
    operation = write.operation
    body: Object = {
        "metadata": {"name": operation.name, "uid": operation.uid, "resourceVersion": operation.version},
        "status": {**msgspec.json.decode(msgspec.json.encode(write.status)), "phase": str(write.status.phase)},
    }
    return await api.apply(NODE_OPERATIONS, body, manager=names.OPERATIONS_FIELD_MANAGER, subresource="status")


async def hold(api: KubeApi, write: HoldNode) -> Object:
    """Write a node's owners and cordon, or remove everything that the engine has set. Raises KubeError."""
    node = write.node
    body: Object = {"metadata": {"name": node.name, "uid": node.uid}}
    if write.owners:
        annotations = body["metadata"]["annotations"] = {names.CORDON_ANNOTATION: ",".join(write.owners)}
        if write.order is not None:
            annotations[names.OPERATION_ANNOTATION] = encode(write.order)
        if write.cordon:
            body["spec"] = {"unschedulable": True}
        if write.mark:
            body["metadata"]["labels"] = {names.NEEDS_REPLACEMENT_LABEL: "true"}
    return await api.apply(NODES, body, manager=names.OPERATIONS_FIELD_MANAGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActSettings:
    """The namespace of pods that act on nodes, and their image, which is kgpu's own."""

    namespace: str = "gpu-operator"
    image: str = "kgpu"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    paths: DriverPaths = field(default_factory=DriverPaths)


async def start_act(api: KubeApi, write: StartAct, settings: ActSettings) -> Object | None:
    """Create the pod that acts on its node; None if it already exists. Raises KubeError."""
    try:
        return await api.create(PODS, act_pod(write, settings))
    except KubeRefusedError as refused:
        if refused.reason == "AlreadyExists":
            return None
        raise


def act_pod(write: StartAct, settings: ActSettings) -> Object:
    """The act's pod. It has no token, and runs once."""
    operation, act = write.operation, write.act
    resets = operation.type is OperationType.GPU_RESET
    if resets:
        container = act_pods.reset_container(
            act.id, act.boot_id, operation.spec.gpus, settings.image, settings.pull_policy,
            driver_install_dir=settings.paths.driver_install_dir, root_fs=settings.paths.root_fs,
        )  # fmt: skip
    else:
        container = act_pods.reboot_container(act.id, act.boot_id, settings.image, settings.pull_policy)
    spec: Object = {
        "nodeName": write.node.name,
        "hostPID": True,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": ACT_DEADLINE,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": _volumes(settings) if resets else act_pods.reboot_volumes(),
    }
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    labels = {"app": names.ACT_APP, names.ACT_LABEL: act.id, names.NAME_LABEL: "kgpu"}
    owner = {
        "apiVersion": NODE_OPERATIONS.api_version, "kind": NODE_OPERATIONS.kind, "name": operation.name,
        "uid": operation.uid,
    }  # fmt: skip
    metadata = {
        "name": f"{names.ACT_APP}-{act.id}", "namespace": settings.namespace, "labels": labels,
        "ownerReferences": [owner],
    }  # fmt: skip
    return {"metadata": metadata, "spec": spec}


def _volumes(settings: ActSettings) -> list[Object]:
    paths = settings.paths
    return act_pods.reset_volumes(driver_install_dir=paths.driver_install_dir, root_fs=paths.root_fs)


async def end_act(api: KubeApi, write: EndAct, settings: ActSettings) -> None:
    """Delete the pod of an act. Raises KubeError."""
    await api.delete(PODS, write.pod.name, namespace=settings.namespace, uid=write.pod.uid)


async def delete_driver_pod(api: KubeApi, write: DeleteDriverPod) -> None:
    """Delete the pod of a driver, with its own grace period; one that is gone, or another of its name, is no error.
    Raises KubeError.
    """
    pod = write.pod
    try:
        await api.delete(PODS, pod.name, namespace=pod.namespace, uid=pod.uid)
    except KubeRefusedError as refused:
        if refused.code not in (404, 409):
            raise


async def send_away(
    api: KubeApi, write: Evict | Delete, former: Answer | None, *, now: float, uniform: Callable[[], float]
) -> Answer | None:
    """Evict or delete a pod; None if that was granted or the pod is gone. Raises KubeUnreachableError.

    ``former`` is the answer to the last attempt, ``uniform`` returns a random number from 0 to 1.
    """
    pod = write.pod
    try:
        if isinstance(write, Delete):
            await api.delete(PODS, pod.name, namespace=pod.namespace, grace=write.grace, uid=pod.uid)
        else:
            await evict(api, pod.namespace, pod.name, pod.uid, grace=write.grace)
    except KubeRefusedError as refused:
        verb = "delete" if isinstance(write, Delete) else "evict"
        return _answer(refused, former, verb, now=now, uniform=uniform)
    return None


async def evict(api: KubeApi, namespace: str, name: str, uid: str, *, grace: int | None = None) -> None:
    """Evict a pod, which disruption budgets may refuse; ``grace`` in seconds, None for its own. Raises KubeError."""
    options: Object = {"preconditions": {"uid": uid}}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    eviction: Object = {
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name}, "deleteOptions": options,
    }  # fmt: skip
    await api.create(PODS, eviction, subresource="eviction")


def _answer(
    refused: KubeRefusedError, former: Answer | None, verb: str, *, now: float, uniform: Callable[[], float]
) -> Answer | None:
    """The answer that a refusal stands for; None if the pod is gone or another has its name."""
    if refused.code in (404, 409):
        return None
    times = former.times + 1 if former is not None else 1
    policy = EVICT_AGAIN
    full = min(policy.cap, policy.first * policy.factor ** min(times - 1, 10))
    again_at = now + full * (1 - policy.jitter * uniform())
    return Answer(
        why=_why(refused, verb), again_at=again_at, fatal=_is_final(refused), times=times,
        by_budget=verb == "evict" and _is_by_budget(refused),
    )  # fmt: skip


def _is_by_budget(refused: KubeRefusedError) -> bool:
    """Whether PodDisruptionBudgets refuse it, and nothing else."""
    return _is_by_several(refused) or (refused.code == 429 and any(word == _BUDGET for word, _ in refused.causes))


def _is_by_several(refused: KubeRefusedError) -> bool:
    """Whether it can't be evicted because several budgets select it."""
    return refused.code == 500 and _SEVERAL in refused.what


def _is_final(refused: KubeRefusedError) -> bool:
    """Whether asking again can't help."""
    causes = {word for word, _ in refused.causes}
    if refused.code == 403:
        return _TERMINATING not in causes
    return _is_by_several(refused)


def _why(refused: KubeRefusedError, verb: str) -> str:
    budget = next((message for word, message in refused.causes if word == _BUDGET and message), "")
    if budget:
        return budget
    if refused.code == 403 and any(word == _TERMINATING for word, _ in refused.causes):
        return "its namespace is being deleted"
    if refused.code == 403:
        return f"the operator may not {verb} it, or it can't be {_DONE[verb]}: {refused.what}"
    return refused.what
