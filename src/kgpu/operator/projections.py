"""What the operator keeps of each object that it watches: pure projections, so that memory grows with facts, not text.

A reduced object is a dictionary with ``metadata`` (name, namespace, uid, resourceVersion) and what is of interest under
keys of its own. Nothing here raises for what a cluster contains.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from kgpu.base.advice import Advice
from kgpu.base.plain import items, mapping, strings, text
from kgpu.base.printable import last_words, one_line
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd import decode
from kgpu.formats.crd.nodeoperation import DRIVER_RELEASED, STEADY_SECONDS, OperationPhase, OperationType
from kgpu.formats.driver_revision import revision_of
from kgpu.formats.pod_origin import controller_of, node_of
from kgpu.operator import openshift
from kgpu.operator.model import (
    AgentPod,
    DeviceConfig,
    NodeDriverPod,
    NvidiaDriver,
    Object,
    PodTrouble,
    Policy,
    UpgradeOperation,
)
from kgpu.operator.nodes import read_node

OWNED: Final = "owned"
"""Key of a digest of the fields that the operator has applied to an object; "" when it has applied none."""

_IDENTITY: Final = ("name", "namespace", "uid", "resourceVersion")
_KEPT: Final = (*_IDENTITY, "generation", "labels", "annotations", "ownerReferences", "deletionTimestamp")
# Reasons of a container that waits and is fine: it has not been started yet.
_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing", ""})
# The kubelet alternates between both; only one's message has the cause, with ports that differ each time.
_PULLING: Final = ("ImagePullBackOff", "ErrImagePull")
_CRASHING: Final = "CrashLoopBackOff"
_BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*"(: ErrImagePull)?(: )?')
_ENDPOINTS: Final = re.compile(r"(read|write|dial) (udp|tcp) \S+->\S+: ")
_FORBIDDEN: Final = re.compile(r'^Error creating: (pods "[^"]*" is forbidden: )?')
_MESSAGE: Final = 500
_LAST_WORDS: Final = 160
"""What is kept of what a container said last; the rest is in its log."""


def node(obj: Object) -> Object:
    """A Node as the value that plans are made from."""
    return {"metadata": _pick(obj, _IDENTITY), "node": read_node(obj)}


def policy(obj: Object) -> Object:
    """A ClusterPolicy, decoded."""
    decoded = decode.clusterpolicy(obj)
    value = Policy(
        **_of_custom(obj), spec=decoded.spec, warnings=tuple(map(one_line, decoded.warnings)),
        unbuilt=tuple(map(one_line, decoded.unbuilt)), of_unbuilt=frozenset(map(one_line, decoded.of_unbuilt)),
        problem=_printable(decoded.problem), finalizers=_finalizers(obj),
    )  # fmt: skip
    return {"metadata": _pick(obj, _IDENTITY), "value": value}


def driver(obj: Object) -> Object:
    """An NVIDIADriver, decoded."""
    decoded = decode.nvidiadriver(obj)
    warnings, problem = tuple(map(one_line, decoded.warnings)), _printable(decoded.problem)
    unbuilt = tuple(map(one_line, decoded.unbuilt))
    value = NvidiaDriver(**_of_custom(obj), spec=decoded.spec, warnings=warnings, unbuilt=unbuilt, problem=problem)
    return {"metadata": _pick(obj, _IDENTITY), "value": value}


def device_config(obj: Object) -> Object:
    """A DeviceConfig, decoded."""
    decoded, metadata = decode.deviceconfig(obj), mapping(obj.get("metadata"))
    value = DeviceConfig(
        **_of_custom(obj), namespace=text(metadata.get("namespace")), spec=decoded.spec,
        warnings=tuple(map(one_line, decoded.warnings)), unbuilt=tuple(map(one_line, decoded.unbuilt)),
        problem=_printable(decoded.problem), finalizers=_finalizers(obj),
    )  # fmt: skip
    return {"metadata": _pick(obj, _IDENTITY), "value": value}


def _finalizers(obj: Object) -> tuple[str, ...]:
    return tuple(map(text, items(mapping(obj.get("metadata")).get("finalizers"))))


def _printable(problem: Advice | None) -> Advice | None:
    return None if problem is None else problem.printable()


def _of_custom(obj: Object) -> dict[str, Any]:
    metadata = mapping(obj.get("metadata"))
    generation = metadata.get("generation")
    return {
        "name": text(metadata.get("name")),
        "uid": text(metadata.get("uid")),
        "generation": generation if isinstance(generation, int) else 0,
        "created": text(metadata.get("creationTimestamp")),
        "status": dict(mapping(obj.get("status"))),
        "deleting": bool(metadata.get("deletionTimestamp")),
    }


def daemon_set(obj: Object) -> Object:
    """A whole DaemonSet, with the digest of the fields that the operator owns."""
    metadata = {key: value for key, value in mapping(obj.get("metadata")).items() if key != "managedFields"}
    return {**obj, "metadata": metadata, OWNED: owned(obj)}


def config_map(obj: Object) -> Object:
    """A ConfigMap's keys, and the text of the one that agents read."""
    data = {**mapping(obj.get("data")), **mapping(obj.get("binaryData"))}
    kept: Object = {"metadata": _pick(obj, _KEPT), OWNED: owned(obj), "keys": frozenset(map(str, data))}
    if text(mapping(obj.get("metadata")).get("name")) == names.AGENT_CONFIG_MAP:
        kept["text"] = text(data.get(names.AGENT_CONFIG_KEY))
    return kept


def managed(obj: Object) -> Object:
    """Any other object of the operator: its metadata, and the digest of the fields that the operator owns."""
    return {"metadata": _pick(obj, _KEPT), OWNED: owned(obj)}


def pod(obj: Object) -> Object:
    """A pod of the operator's namespace: its DaemonSet, its node, and what is wrong with it."""
    metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    node, placed = node_of(obj)
    owner, ready = controller_of(obj), condition_of(status, "Ready")
    reason, message = ("", "") if metadata.get("deletionTimestamp") else pod_trouble(status)
    return {
        "metadata": _pick(obj, _IDENTITY),
        "made": text(metadata.get("creationTimestamp")),
        "owner": "" if "/" in owner else owner,
        "node": node,
        "reason": reason,
        "message": message,
        "ready": ready.get("status") == "True",
        "address": "" if metadata.get("deletionTimestamp") else text(status.get("podIP")),
        "ready_since": text(ready.get("lastTransitionTime")),
        "driver": _driver_facts(obj, owner, placed=placed),
    }


def _driver_facts(obj: Object, controller: str, *, placed: bool) -> Object | None:
    """What a driver's pod was made for, None for another pod: the engine knows one by the same label and container."""
    metadata, made_for = mapping(obj.get("metadata")), revision_of(obj)
    is_driver = strings(metadata.get("labels")).get(names.COMPONENT_LABEL) == names.DRIVER_COMPONENT
    if not (is_driver and made_for.image):
        return None
    return {
        "controller": controller, "placed": placed, "leaving": bool(metadata.get("deletionTimestamp")),
        "digest": made_for.digest, "version": made_for.rules, "image": made_for.image,
    }  # fmt: skip


def driver_pods(pods: Iterable[Object], now: float) -> tuple[NodeDriverPod, ...]:
    """The pods of drivers, of the reduced pods. ``now`` is in seconds since 1970; a node's clock may be ahead of it."""
    fresh_from, fresh_to = stamp_of(now - STEADY_SECONDS), stamp_of(now + STEADY_SECONDS)
    found = [
        NodeDriverPod(
            name=pod["metadata"]["name"],
            node=pod["node"],
            daemon_set=facts["controller"],
            placed=facts["placed"],
            digest=facts["digest"],
            digest_version=facts["version"],
            image=facts["image"],
            made=pod["made"],
            ready=pod["ready"],
            fresh=pod["ready"] and fresh_from < pod["ready_since"] <= fresh_to,
            leaving=facts["leaving"],
        )
        for pod in pods
        if (facts := pod["driver"]) is not None
    ]
    return tuple(sorted(found, key=lambda pod: (pod.node, pod.name)))


def operation(obj: Object) -> Object:
    """A NodeOperation: under ``upgrade`` what it says of a driver's exchange, None for one of another type."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    kept: Object = {"metadata": _pick(obj, _IDENTITY), "upgrade": None}
    if spec.get("type") != OperationType.DRIVER_UPGRADE:
        return kept
    driver = mapping(spec.get("driver"))
    kept["upgrade"] = UpgradeOperation(
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        created=text(metadata.get("creationTimestamp")),
        spec=dict(spec),
        phase=text(status.get("phase")) or str(OperationPhase.PENDING),
        reason=text(status.get("reason")),
        message=_cut(text(status.get("message"))),
        result=text(status.get("result")),
        approved=spec.get("approved") is not False,
        approved_by_policy=strings(metadata.get("annotations")).get(names.APPROVED_BY) == names.APPROVED_BY_POLICY,
        was_cordoned=mapping(status.get("before")).get("unschedulable") is True,
        released=bool(condition_of(status, DRIVER_RELEASED)),
        node=text(spec.get("nodeName")),
        node_uid=text(spec.get("nodeUID")),
        daemon_set=text(driver.get("daemonSet")),
        digest=text(driver.get("digest")),
        requested_by=text(spec.get("requestedBy")),
    )
    return kept


def pod_trouble(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and message of what keeps a pod from being ready; two empty texts when it is ready.

    The first that applies: the pod failed, it has no node, a container can't start or ended, one is not ready.
    """
    if condition_of(status, "Ready").get("status") == "True" or status.get("phase") == "Succeeded":
        return "", ""
    if status.get("phase") == "Failed":
        return text(status.get("reason")) or "Failed", _cut(text(status.get("message")) or "the pod has failed")
    scheduled = condition_of(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return text(scheduled.get("reason")) or "Unschedulable", _cut(text(scheduled.get("message")))
    containers = [
        mapping(container)
        for key in ("initContainerStatuses", "containerStatuses")
        for container in items(status.get(key))
    ]
    for container in containers:
        problem = _container(container)
        if problem is not None:
            return problem
    for container in containers:
        if container.get("ready") is not True and "running" in mapping(container.get("state")):
            return "NotReady", f"container {text(container.get('name'))} runs but is not ready"
    name = next((text(container.get("name")) for container in containers if container.get("ready") is not True), "")
    return "Starting", f"container {name} is being started" if name else "the pod is being started"


def _container(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with one container, in a text that stays the same from one attempt to the next."""
    name, state = text(status.get("name")), mapping(status.get("state"))
    waiting, ended = mapping(state.get("waiting")), mapping(state.get("terminated"))
    last = mapping(mapping(status.get("lastState")).get("terminated"))
    reason, message = text(waiting.get("reason")), text(waiting.get("message"))
    if reason in _PULLING:
        message = _ENDPOINTS.sub("", _BACK_OFF.sub("", message)) or f"image {text(status.get('image'))} can't be pulled"
        return _PULLING[0], _cut(f"container {name}: {message}")
    again = reason == _CRASHING or ((status.get("restartCount") or status.get("lastState")) and not status.get("ready"))
    # What a probe stops may end with code 0; then it has left a message.
    failed = next((end for end in (ended, last) if end.get("exitCode") or (again and end.get("message"))), None)
    if failed is not None and (again or failed is ended):
        return _CRASHING if again else text(failed.get("reason")) or "Error", _cut(
            f"container {name}: {_ended(failed)}"
        )
    if waiting and reason not in _STARTING:
        return reason, _cut(f"container {name}: {message or 'it waits'}")
    return None


def _ended(state: Mapping[str, Any]) -> str:
    if not state:
        return ""
    message = last_words(text(state.get("message")), _LAST_WORDS)
    return f"exit code {state.get('exitCode')}" + (f": {message}" if message else "")


def warning(obj: Object) -> Object:
    """A Warning Event: its object, reason and message."""
    about = mapping(obj.get("involvedObject"))
    last = text(obj.get("lastTimestamp")) or text(obj.get("eventTime"))
    return {
        "metadata": _pick(obj, _IDENTITY),
        "kind": text(about.get("kind")),
        "name": text(about.get("name")),
        "uid": text(about.get("uid")),
        "reason": text(obj.get("reason")),
        "message": _cut(text(obj.get("message"))),
        "at": last or text(mapping(obj.get("metadata")).get("creationTimestamp")),
    }


def deployment(obj: Object) -> Object:
    """A Deployment: whether it is meant to run, and its pods' service account."""
    spec, metadata = mapping(obj.get("spec")), mapping(obj.get("metadata"))
    replicas = spec.get("replicas")
    pod = mapping(mapping(spec.get("template")).get("spec"))
    return {
        "metadata": _pick(obj, _IDENTITY),
        "labels": strings(metadata.get("labels")),
        "made": text(metadata.get("creationTimestamp")),
        "account": text(pod.get("serviceAccountName")) or "default",
        "runs": replicas != 0 and not metadata.get("deletionTimestamp"),
    }


def cluster_version(obj: Object) -> Object:
    """OpenShift's ClusterVersion: the release."""
    return {"metadata": _pick(obj, _IDENTITY), "version": openshift.minor_release(obj)}


def cluster_proxy(obj: Object) -> Object:
    """OpenShift's Proxy: the variables of containers, and whether it needs certificates."""
    variables, trusted_ca = openshift.proxy_variables(obj), openshift.has_trusted_ca(obj)
    return {"metadata": _pick(obj, _IDENTITY), "variables": variables, "trusted_ca": trusted_ca}


def toolkit_stream(obj: Object) -> Object:
    """OpenShift's ImageStream of driver toolkits."""
    return {"metadata": _pick(obj, _IDENTITY), "images": openshift.driver_toolkit(obj)}


def owned(obj: Object) -> str:
    """A digest of which fields of the object are the operator's by server-side apply; "" for none."""
    for entry in map(mapping, items(_managed_fields(obj))):
        mine = entry.get("manager") == names.OPERATOR_FIELD_MANAGER and entry.get("operation") == "Apply"
        if mine and not entry.get("subresource"):
            return digest(entry.get("fieldsV1"))
    return ""


def digest(value: Any) -> str:
    """A short digest of JSON data; the order of keys does not matter."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def troubles(pods: Iterable[Object], warnings: Iterable[Object]) -> tuple[PodTrouble, ...]:
    """The pods of DaemonSets that are not ready. Where a pod is only being started, its last Event says why."""
    last: dict[str, Object] = {}
    for event in sorted((pod for pod in warnings if pod["kind"] == "Pod"), key=lambda pod: str(pod["at"])):
        last[event["uid"] or event["name"]] = event
    pod_troubles = []
    for pod in pods:
        if pod["owner"] and pod["reason"]:
            metadata = pod["metadata"]
            last_event = last.get(metadata.get("uid", "")) or last.get(metadata["name"])
            vague = pod["reason"] in ("Starting", "NotReady")
            reason, message = (pod["reason"], pod["message"])
            if vague and last_event is not None:
                reason, message = last_event["reason"], f"{pod['message']}: {last_event['message']}"
            pod_troubles.append(
                PodTrouble(
                    daemon_set=pod["owner"], node=pod["node"], pod=metadata["name"], reason=reason, message=message
                )
            )
    return tuple(sorted(pod_troubles, key=lambda trouble: (trouble.daemon_set, trouble.node, trouble.pod)))


def nodes_by_daemon_set(pods: Iterable[Object]) -> dict[str, frozenset[str]]:
    """The nodes on which a DaemonSet has pods, by its name."""
    nodes_by_set: dict[str, set[str]] = {}
    for pod in pods:
        if pod["owner"]:
            nodes_by_set.setdefault(pod["owner"], set()).add(pod["node"])
    return {name: frozenset(nodes) for name, nodes in nodes_by_set.items()}


def agents(pods: Iterable[Object]) -> dict[str, AgentPod]:
    """The pods of the agent that have an address and are to stay, by node."""
    return {
        pod["node"]: AgentPod(address=pod["address"], ready=pod["ready"])
        for pod in pods
        if pod["owner"] == names.AGENT_DAEMON_SET and pod["address"]
    }


def newest_pods(pods: Iterable[Object]) -> dict[str, str]:
    """When the newest pod of each DaemonSet was created, by the DaemonSet's name."""
    times: dict[str, str] = {}
    for pod in pods:
        if pod["owner"]:
            times[pod["owner"]] = max(pod["made"], times.get(pod["owner"], ""))
    return times


def failures(daemon_sets: Mapping[str, Object], warnings: Iterable[Object], since: Mapping[str, str]) -> dict[str, str]:
    """Why pods of DaemonSets could not be created, by the DaemonSet's name; only where pods are missing.

    ``since`` is when each DaemonSet's newest pod was created: warnings from before that are out of date.
    """
    latest: dict[str, tuple[str, str]] = {}
    for event in warnings:
        live = daemon_sets.get(event["name"]) if event["kind"] == "DaemonSet" else None
        old = event["at"] < since.get(event["name"], "")
        known = live is not None and event["uid"] in ("", mapping(live["metadata"]).get("uid"))
        if live is not None and known and not old and _misses_pods(live):
            latest[event["name"]] = max(latest.get(event["name"], ("", "")), (event["at"], event["message"]))
    # The pod's name differs each time.
    return {name: _FORBIDDEN.sub("", message) for name, (_, message) in sorted(latest.items())}


def _misses_pods(live: Object) -> bool:
    status = mapping(live.get("status"))
    desired, current = status.get("desiredNumberScheduled") or 0, status.get("currentNumberScheduled") or 0
    return not isinstance(desired, int) or not isinstance(current, int) or current < desired


def _managed_fields(obj: Object) -> Any:
    return mapping(obj.get("metadata")).get("managedFields")


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of an object's status, empty where it has none of that type."""
    return next(
        (condition for condition in map(mapping, items(status.get("conditions"))) if condition.get("type") == kind), {}
    )


def _pick(obj: Object, keys: Iterable[str]) -> Object:
    metadata = mapping(obj.get("metadata"))
    return {key: metadata[key] for key in keys if key in metadata}


def _cut(message: str) -> str:
    return one_line(message, _MESSAGE)
