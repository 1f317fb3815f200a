"""Cells that show more than one field: nodes, events, services, jobs, storage, autoscalers, policies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from kgpu.base.times import moment_of
from kgpu.formats.names import DEFAULT_STORAGE_CLASS
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.tables.text import (
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    condition_is_true,
    duration,
    selector_text,
    shortened,
    since,
    value_at,
)

_ROLE: Final = "node-role.kubernetes.io/"
_DEFAULT_CLASS: Final = (
    DEFAULT_STORAGE_CLASS,
    "storageclass.beta.kubernetes.io/is-default-class",
)
_MODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def ratio(part: str, whole: str) -> Cell:
    """``ready/desired``."""
    return lambda obj, _now: f"{value_at(obj, part, 0)}/{value_at(obj, whole, 0)}"


def text_or(path: str, default: str) -> Cell:
    """A field's text, or ``default`` also when it is empty."""
    return lambda obj, _now: str(value_at(obj, path, "")) or default


def joined_text(path: str) -> Cell:
    return lambda obj, _now: ",".join(map(str, value_at(obj, path, ())))


def deployment_selector(obj: Object, _now: datetime) -> str:
    return selector_text(value_at(obj, "spec.selector")).replace("<error>", "<invalid>")


def node_status(obj: Object, _now: datetime) -> str:
    conditions = value_at(obj, "status.conditions", ())
    ready = [condition for condition in conditions if condition.get("type") == "Ready"]
    words = ["Ready" if ready[-1].get("status") == "True" else "NotReady"] if ready else ["Unknown"]
    return ",".join([*words, "SchedulingDisabled"] if value_at(obj, "spec.unschedulable") else words)


def node_roles(obj: Object, _now: datetime) -> str:
    roles = set()
    for key, value in value_at(obj, "metadata.labels", {}).items():
        role = key.removeprefix(_ROLE) if key.startswith(_ROLE) else value if key == "kubernetes.io/role" else ""
        roles |= {role} - {""}
    return ",".join(sorted(roles)) or NONE


def node_address(kind: str) -> Cell:
    return lambda obj, _now: next(
        (
            address.get("address", "")
            for address in value_at(obj, "status.addresses", ())
            if address.get("type") == kind
        ),
        NONE,
    )


def event_first(obj: Object, now: datetime) -> str:
    return since(obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime"), now)


def event_last(obj: Object, now: datetime) -> str:
    series = obj.get("series")
    if series is not None:
        return since(series.get("lastObservedTime"), now)
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    return since(last, now) if last else event_first(obj, now)


def event_count(obj: Object, _now: datetime) -> int:
    count = (
        value_at(obj, "series.count") if obj.get("series") is not None else obj.get("count", obj.get("deprecatedCount"))
    )
    return int(count or 1)


def event_object(obj: Object, _now: datetime) -> str:
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    kind = str(involved.get("kind", "")).lower()
    return f"{kind}/{involved['name']}" if involved.get("name") else kind


def event_part(obj: Object, _now: datetime) -> str:
    return str((obj.get("involvedObject") or obj.get("regarding") or {}).get("fieldPath", ""))


def event_source(obj: Object, _now: datetime) -> str:
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def event_message(obj: Object, _now: datetime) -> str:
    return str(obj.get("message") or obj.get("note") or "").strip()


def cluster_ip(obj: Object, _now: datetime) -> str:
    return str(next(iter(value_at(obj, "spec.clusterIPs", ())), NONE))


def external_ip(obj: Object, _now: datetime) -> str:
    spec = obj.get("spec", {})
    own = spec.get("externalIPs") or []
    match spec.get("type"):
        case "ClusterIP" | "NodePort":
            return ",".join(own) or NONE
        case "LoadBalancer":
            return ",".join(filter(None, [_balancer(obj), *own])) or "<pending>"
        case "ExternalName":
            return str(spec.get("externalName", ""))
    return UNKNOWN


def _balancer(obj: Object) -> str:
    addresses = {
        ingress.get("ip") or ingress.get("hostname") or ""
        for ingress in value_at(obj, "status.loadBalancer.ingress", ())
    }
    return ",".join(sorted(addresses - {""}))


def balancer(obj: Object, _now: datetime) -> str:
    return _balancer(obj)


def service_ports(obj: Object, _now: datetime) -> str:
    texts = []
    for port in value_at(obj, "spec.ports", ()):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(texts) or NONE


def ingress_hosts(obj: Object, _now: datetime) -> str:
    rules = value_at(obj, "spec.rules", ())
    hosts = [rule["host"] for rule in rules if rule.get("host")]
    return shortened(hosts, total=len(rules)) if len(hosts) > 2 else ",".join(hosts) or "*"


def ingress_ports(obj: Object, _now: datetime) -> str:
    return "80, 443" if value_at(obj, "spec.tls") else "80"


def class_parameters(obj: Object, _now: datetime) -> str:
    parameters = value_at(obj, "spec.parameters")
    if parameters is None:
        return NONE
    group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") is not None else ""
    return f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"


def endpoints(obj: Object, _now: datetime) -> str:
    subsets = obj.get("subsets") or ()
    if not subsets:
        return NONE
    addresses = []
    for subset in subsets:
        for port in subset.get("ports") or (None,):
            end = "" if port is None else f":{port['port']}"
            addresses += [_host(address["ip"], end) for address in subset.get("addresses") or ()]
    return shortened(addresses)


def _host(address: str, end: str) -> str:
    return f"[{address}]{end}" if end and ":" in address else f"{address}{end}"


def slice_ports(obj: Object, _now: datetime) -> str:
    ports = [
        str(port["port"] if port.get("port") is not None else port.get("name", "*")) for port in obj.get("ports") or ()
    ]
    return shortened(ports, nothing=UNSET)


def slice_endpoints(obj: Object, _now: datetime) -> str:
    return shortened(
        [ip for endpoint in obj.get("endpoints") or () for ip in endpoint.get("addresses") or ()], nothing=UNSET
    )


_JOB_STATES: Final = (
    ("Complete", "Complete"), ("Failed", "Failed"), ("", "Terminating"), ("Suspended", "Suspended"),
    ("FailureTarget", "FailureTarget"), ("SuccessCriteriaMet", "SuccessCriteriaMet"),
)  # fmt: skip


def job_status(obj: Object, _now: datetime) -> str:
    conditions = value_at(obj, "status.conditions", ())
    leaving = bool(obj["metadata"].get("deletionTimestamp"))
    return next(
        (word for kind, word in _JOB_STATES if (condition_is_true(conditions, kind) if kind else leaving)), "Running"
    )


def job_completions(obj: Object, _now: datetime) -> str:
    done, wanted = value_at(obj, "status.succeeded", 0), value_at(obj, "spec.completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallelism = value_at(obj, "spec.parallelism", 0)
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def job_duration(obj: Object, now: datetime) -> str:
    start, end = moment_of(value_at(obj, "status.startTime")), moment_of(value_at(obj, "status.completionTime"))
    return "" if start is None else duration(((end or now) - start).total_seconds())


def boolean_text(path: str) -> Cell:
    """``True``, ``False`` or ``<unset>``."""
    words = {True: "True", False: "False", None: UNSET}
    return lambda obj, _now: words[value_at(obj, path)]


def since_or_none(path: str) -> Cell:
    return lambda obj, now: since(value_at(obj, path), now) if value_at(obj, path) else NONE


def _phase(obj: Object) -> str:
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else str(value_at(obj, "status.phase", ""))


def volume_phase(obj: Object, _now: datetime) -> str:
    return _phase(obj)


def _modes(modes: Iterable[str]) -> str:
    modes = set(modes)
    return ",".join(short for mode, short in _MODES.items() if mode in modes)


def volume_modes(obj: Object, _now: datetime) -> str:
    return _modes(value_at(obj, "spec.accessModes", ()))


def volume_claim(obj: Object, _now: datetime) -> str:
    claim = value_at(obj, "spec.claimRef")
    return "" if claim is None else f"{claim.get('namespace', '')}/{claim.get('name', '')}"


def storage_class_of(obj: Object, _now: datetime) -> str:
    old = value_at(obj, "metadata.annotations", {}).get("volume.beta.kubernetes.io/storage-class")
    return str(value_at(obj, "spec.storageClassName", "") if old is None else old)


def claim_modes(obj: Object, _now: datetime) -> str:
    return _modes(value_at(obj, "status.accessModes", ())) if value_at(obj, "spec.volumeName") else ""


def claim_capacity(obj: Object, _now: datetime) -> str:
    return str(value_at(obj, "status.capacity.storage", "0")) if value_at(obj, "spec.volumeName") else ""


def storage_class_name(obj: Object, _now: datetime) -> str:
    notes = value_at(obj, "metadata.annotations", {})
    default = any(notes.get(key) == "true" for key in _DEFAULT_CLASS)
    return f"{obj['metadata']['name']} (default)" if default else str(obj["metadata"]["name"])


def quota(*, limits: bool) -> Cell:
    """Used and hard amounts of a quota: of the keys ``limits.``, or of all others."""

    def cell(obj: Object, _now: datetime) -> str:
        hard, used = value_at(obj, "status.hard", {}), value_at(obj, "status.used", {})
        return ", ".join(
            f"{key}: {used.get(key, 0)}/{hard[key]}" for key in sorted(hard) if key.startswith("limits.") is limits
        )

    return cell


def role_ref(obj: Object, _now: datetime) -> str:
    return f"{value_at(obj, 'roleRef.kind', '')}/{value_at(obj, 'roleRef.name', '')}"


def subjects(kind: str) -> Cell:
    """The subjects of one kind."""

    def cell(obj: Object, _now: datetime) -> str:
        names = []
        for subject in obj.get("subjects") or ():
            if subject.get("kind") == kind:
                prefix = f"{subject['namespace']}/" if kind == "ServiceAccount" and subject.get("namespace") else ""
                names.append(prefix + subject.get("name", ""))
        return ", ".join(names)

    return cell


def claim_state(obj: Object, _now: datetime) -> str:
    states = ["deleted"] if obj["metadata"].get("deletionTimestamp") else []
    if value_at(obj, "status.allocation") is None:
        return ",".join(states or ["pending"])
    return ",".join([*states, "allocated", *(["reserved"] if value_at(obj, "status.reservedFor") else [])])


def controller(obj: Object, _now: datetime) -> str:
    owner = next(
        (reference for reference in value_at(obj, "metadata.ownerReferences", ()) if reference.get("controller")), None
    )
    if owner is None:
        return NONE
    group = owner["apiVersion"].rpartition("/")[0]
    return f"{owner['kind']}{'.' if group else ''}{group}".lower() + f"/{owner['name']}"


def params(path: str) -> Cell:
    """``apiVersion/kind`` of a policy's parameters."""
    return lambda obj, _now: (
        UNSET
        if value_at(obj, path) is None
        else f"{value_at(obj, f'{path}.apiVersion', '')}/{value_at(obj, f'{path}.kind', '')}"
    )


def param_ref(obj: Object, _now: datetime) -> str:
    reference = value_at(obj, "spec.paramRef")
    if reference is None or not reference.get("name"):
        return UNSET
    return f"{reference.get('namespace') or '*'}/{reference['name']}"


def scale_target(obj: Object, _now: datetime) -> str:
    return f"{value_at(obj, 'spec.scaleTargetRef.kind', '')}/{value_at(obj, 'spec.scaleTargetRef.name', '')}"


def scale_metrics(obj: Object, _now: datetime) -> str:
    """Current and wanted value of the first two metrics (autoscaling/v2)."""
    texts = []
    statuses = value_at(obj, "status.currentMetrics", None) or []
    for index, spec in enumerate(value_at(obj, "spec.metrics", ())):
        part = {"External": "external", "Pods": "pods", "Object": "object", "Resource": "resource",
                "ContainerResource": "containerResource"}.get(spec.get("type", ""))  # fmt: skip
        if part is None:
            texts.append("<unknown type>")
            continue
        target = value_at(spec, f"{part}.target", {})
        current = value_at(statuses[index], f"{part}.current", {}) if index < len(statuses) else {}
        named = f"{value_at(spec, f'{part}.name', '')}: " if part.lower().endswith("resource") else ""
        if target.get("averageValue") is not None:
            suffix = " (avg)" if part in ("external", "object") else ""
            texts.append(f"{named}{current.get('averageValue', UNKNOWN)}/{target['averageValue']}{suffix}")
        elif named:
            used, wanted = current.get("averageUtilization"), target.get("averageUtilization")
            shown = UNKNOWN if used is None else f"{used}%"
            texts.append(f"{named}{shown}/{'<auto>' if wanted is None else f'{wanted}%'}")
        else:
            texts.append(f"{current.get('value', UNKNOWN)}/{target.get('value', '')}")
    text = ", ".join(texts[:2])
    return f"{text} + {len(texts) - 2} more..." if len(texts) > 2 else text or NONE


def flag(path: str, default: bool = False) -> Cell:
    return lambda obj, _now: bool(value_at(obj, path, default))


def dangling(obj: Object, _now: datetime) -> str:
    return next(
        (
            condition["status"]
            for condition in value_at(obj, "status.conditions", ())
            if condition["type"] == "Dangling"
        ),
        "?",
    )


def requested(obj: Object, _now: datetime) -> str:
    seconds: Any = value_at(obj, "spec.expirationSeconds")
    return NONE if seconds is None else duration(seconds)


def request_condition(obj: Object, _now: datetime) -> str:
    kinds = [condition["type"] for condition in value_at(obj, "status.conditions", ())]
    words = ["Denied" if "Denied" in kinds else "Approved" if "Approved" in kinds else "Pending"]
    words += ["Failed"] if "Failed" in kinds else []
    return ",".join([*words, "Issued"] if value_at(obj, "status.certificate") else words)


def api_service(obj: Object, _now: datetime) -> str:
    service = value_at(obj, "spec.service")
    return "Local" if service is None else f"{service.get('namespace', '')}/{service.get('name', '')}"


def api_available(obj: Object, _now: datetime) -> str:
    for condition in value_at(obj, "status.conditions", ()):
        if condition["type"] == "Available":
            return "True" if condition["status"] == "True" else f"{condition['status']} ({condition.get('reason', '')})"
    return "Unknown"


def address_parent(obj: Object, _now: datetime) -> str:
    parent = value_at(obj, "spec.parentRef")
    if parent is None:
        return NONE
    group = f".{parent['group']}" if parent.get("group") else ""
    parts = [f"{parent.get('resource', '')}{group}".lower(), parent.get("namespace"), parent.get("name")]
    return "/".join(filter(None, parts))
