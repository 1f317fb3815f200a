"""From plain API dictionaries to the views of ``kgpu.fit.model``. Hostile input gives a view, not an error.

What can't be read of an object is listed in the view's ``problems``; an object without a name gives None.
Defaults that the API server fills in are filled in here too, so that a manifest that was never sent reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, strings, text, texts
from kgpu.base.quantity import NANO
from kgpu.fit.binding import claim_binding
from kgpu.fit.model import (
    BudgetView,
    ClaimView,
    ContainerAsk,
    DeviceClassView,
    HostPort,
    NamespaceView,
    NodeView,
    PodClaim,
    PodTerm,
    PodView,
    QuotaView,
    Spread,
    StorageClassView,
    VolumeClaimView,
    VolumeView,
    WeightedNodeTerm,
)
from kgpu.fit.resources import (
    amounts,
    container_requests,
    nanos,
    pod_limits,
    pod_nonzero,
    pod_requests,
    pod_used,
    unsaid,
)
from kgpu.fit.selectors import (
    EVERYTHING,
    LABEL_OPERATORS,
    NOTHING,
    LabelSelector,
    NodeTerm,
    PodToleration,
    Requirement,
    Taint,
    field_problem,
    problem,
)
from kgpu.formats.names import EXTENDED_CLAIM_ANNOTATION
from kgpu.kube.owners import controller_of, kind_and_name

Object = Mapping[str, Any]
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


def label_selector(value: Any) -> LabelSelector:
    """A LabelSelector: absent selects nothing, ``{}`` everything, one that can't be parsed nothing."""
    if not isinstance(value, dict):
        return NOTHING
    wanted = [Requirement(key, "In", (entry,)) for key, entry in sorted(strings(value.get("matchLabels")).items())]
    wanted += _requirements(value.get("matchExpressions"))
    wrong = [
        error
        for requirement in wanted
        if (error := problem(requirement.key, requirement.operator, requirement.values, LABEL_OPERATORS))
    ]
    return (
        LabelSelector(nothing=True, error=wrong[0]) if wrong else LabelSelector(tuple(wanted)) if wanted else EVERYTHING
    )


def node_term(value: Any) -> NodeTerm | None:
    """A node selector term; None for an empty one, which selects nothing and counts for nothing."""
    term = mapping(value)
    expressions = _requirements(term.get("matchExpressions"))
    fields = _requirements(term.get("matchFields"))
    if not expressions and not fields:
        return None
    wrong = [
        error
        for requirement in expressions
        if (error := problem(requirement.key, requirement.operator, requirement.values))
    ]
    wrong += [
        error
        for requirement in fields
        if (error := field_problem(requirement.key, requirement.operator, requirement.values))
    ]
    return NodeTerm(expressions, fields, wrong[0] if wrong else "")


def node_terms(value: Any) -> tuple[NodeTerm, ...] | None:
    """The terms of a NodeSelector; None when there is no selector at all."""
    if not isinstance(value, dict):
        return None
    return tuple(term for entry in items(value.get("nodeSelectorTerms")) if (term := node_term(entry)))


def _requirements(value: Any) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(text(entry.get("key")), text(entry.get("operator")), texts(entry.get("values")))
        for entry in map(mapping, items(value))
    )


def _pod_term(value: Any, namespace: str, labels: Mapping[str, str], weight: int = 0) -> PodTerm:
    term = mapping(value)
    namespaces = frozenset(texts(term.get("namespaces")))
    selector = term.get("namespaceSelector")
    if not namespaces and not isinstance(selector, dict):
        namespaces = frozenset({namespace})
    extra = _by_labels(term.get("matchLabelKeys"), "In", labels) + _by_labels(
        term.get("mismatchLabelKeys"), "NotIn", labels
    )
    return PodTerm(
        text(term.get("topologyKey")),
        label_selector(term.get("labelSelector")).adding(extra),
        namespaces,
        label_selector(selector),
        weight,
    )


def _by_labels(keys: Any, operator: str, labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    """The pod's own values of the labels named, as requirements; the API server adds the same ones."""
    return tuple(Requirement(key, operator, (labels[key],)) for key in texts(keys) if key in labels)


def _pod_terms(value: Any, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    wanted = mapping(value).get("requiredDuringSchedulingIgnoredDuringExecution")
    return tuple(_pod_term(entry, namespace, labels) for entry in items(wanted))


def _preferred_pods(value: Any, namespace: str, labels: Mapping[str, str], sign: int) -> tuple[PodTerm, ...]:
    wanted = mapping(value).get("preferredDuringSchedulingIgnoredDuringExecution")
    return tuple(
        _pod_term(entry.get("podAffinityTerm"), namespace, labels, sign * number(entry.get("weight")))
        for entry in map(mapping, items(wanted))
    )


def _preferred_nodes(value: Any) -> tuple[WeightedNodeTerm, ...]:
    wanted = mapping(value).get("preferredDuringSchedulingIgnoredDuringExecution")
    weighted = (
        (number(entry.get("weight")), node_term(entry.get("preference"))) for entry in map(mapping, items(wanted))
    )
    return tuple(WeightedNodeTerm(weight, term) for weight, term in weighted if weight and term and not term.error)


def _spread(value: Any, labels: Mapping[str, str]) -> Spread:
    entry = mapping(value)
    return Spread(
        max_skew=number(entry.get("maxSkew"), 1),
        topology_key=text(entry.get("topologyKey")),
        selector=label_selector(entry.get("labelSelector")).adding(
            _by_labels(entry.get("matchLabelKeys"), "In", labels)
        ),
        hard=entry.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
        min_domains=number(entry.get("minDomains"), 1),
        honors_affinity=entry.get("nodeAffinityPolicy") != "Ignore",
        honors_taints=entry.get("nodeTaintsPolicy") == "Honor",
    )


def _host_ports(spec: Object) -> tuple[HostPort, ...]:
    network = spec.get("hostNetwork") is True
    sidecars = [entry for entry in map(mapping, items(spec.get("initContainers"))) if _stays(entry)]
    ports = []
    for container in (*sidecars, *map(mapping, items(spec.get("containers")))):
        for entry in map(mapping, items(container.get("ports"))):
            port = number(entry.get("hostPort")) or (number(entry.get("containerPort")) if network else 0)
            if port > 0:
                protocol, address = text(entry.get("protocol")) or "TCP", text(entry.get("hostIP")) or "0.0.0.0"
                ports.append(HostPort(port, protocol, address))
    return tuple(ports)


def _stays(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def _volume_claims(spec: Object, pod: str) -> tuple[tuple[str, bool], ...]:
    claims = []
    for volume in map(mapping, items(spec.get("volumes"))):
        if isinstance(volume.get("persistentVolumeClaim"), dict):
            claims.append((text(mapping(volume["persistentVolumeClaim"]).get("claimName")), False))
        elif isinstance(volume.get("ephemeral"), dict):
            claims.append((f"{pod}-{text(volume.get('name'))}", True))
    return tuple(claims)


def _claims(spec: Object, status: Object) -> tuple[PodClaim, ...]:
    statuses = {text(entry.get("name")): entry for entry in map(mapping, items(status.get("resourceClaimStatuses")))}
    claims = []
    for entry in map(mapping, items(spec.get("resourceClaims"))):
        name = text(entry.get("name"))
        if own := text(entry.get("resourceClaimName")):
            claims.append(PodClaim(name, own))
        else:
            claim = text(statuses[name].get("resourceClaimName")) if name in statuses else None
            claims.append(PodClaim(name, claim, generated=True))
    return tuple(claims)


def _container_asks(spec: Object) -> tuple[ContainerAsk, ...]:
    ignored: list[str] = []

    def ask(container: Object, *, starts: bool) -> ContainerAsk:
        exact = container_requests(container, ignored)
        asked = tuple((name, amount // NANO) for name, amount in exact.items())
        return ContainerAsk(text(container.get("name")), asked, starts and container.get("restartPolicy") != "Always")

    return (
        *(ask(container, starts=True) for container in map(mapping, items(spec.get("initContainers")))),
        *(ask(container, starts=False) for container in map(mapping, items(spec.get("containers")))),
    )


def owner_of(metadata: Object) -> str:
    """``Kind/name`` of the controlling owner, "" for none."""
    reference = controller_of(metadata)
    return "" if reference is None else kind_and_name(reference)


def pod(obj: Object) -> PodView | None:
    """A Pod."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    namespace = text(metadata.get("namespace")) or "default"
    labels = strings(metadata.get("labels"))
    affinity = mapping(spec.get("affinity"))
    nodes = mapping(affinity.get("nodeAffinity"))
    problems: list[str] = []
    requests = amounts(pod_requests(spec, problems))
    bound = bool(text(spec.get("nodeName")))
    used = amounts(pod_used(spec, status, [])) if bound else requests
    evicted = any(
        condition.get("type") == "DisruptionTarget"
        and condition.get("status") == "True"
        and condition.get("reason") == "PreemptionByScheduler"
        for condition in map(mapping, items(status.get("conditions")))
    )
    return PodView(
        name=name,
        namespace=namespace,
        uid=text(metadata.get("uid")),
        labels=labels,
        node=text(spec.get("nodeName")),
        nominated=text(status.get("nominatedNodeName")),
        scheduler=text(spec.get("schedulerName")) or "default-scheduler",
        priority=number(spec.get("priority")),
        preempts=spec.get("preemptionPolicy") != "Never",
        gates=tuple(text(mapping(gate).get("name")) for gate in items(spec.get("schedulingGates"))),
        terminal=text(status.get("phase")) in _TERMINAL,
        deleting=bool(metadata.get("deletionTimestamp")),
        being_preempted=evicted,
        tolerations=tuple(
            PodToleration(*(text(entry.get(key)) for key in ("key", "operator", "value", "effect")))
            for entry in map(mapping, items(spec.get("tolerations")))
        ),
        node_selector=tuple(sorted(strings(spec.get("nodeSelector")).items())),
        node_terms=node_terms(nodes.get("requiredDuringSchedulingIgnoredDuringExecution")),
        preferred_nodes=_preferred_nodes(nodes),
        affinity=_pod_terms(affinity.get("podAffinity"), namespace, labels),
        anti_affinity=_pod_terms(affinity.get("podAntiAffinity"), namespace, labels),
        preferred_pods=(
            *_preferred_pods(affinity.get("podAffinity"), namespace, labels, 1),
            *_preferred_pods(affinity.get("podAntiAffinity"), namespace, labels, -1),
        ),
        spread=tuple(_spread(entry, labels) for entry in items(spec.get("topologySpreadConstraints"))),
        requests=requests,
        used=used,
        nonzero=amounts(pod_nonzero(spec, [])),
        limits=amounts(pod_limits(spec)),
        unsaid=unsaid(spec),
        ports=_host_ports(spec),
        volume_claims=_volume_claims(spec, name),
        claims=_claims(spec, status),
        containers=_container_asks(spec) if any("/" in name for name in requests) else (),
        created=text(metadata.get("creationTimestamp")),
        started=text(status.get("startTime")),
        owner=owner_of(metadata),
        problems=tuple(problems),
    )


def node(obj: Object) -> NodeView | None:
    """A Node. Where the kubelet has not said what is allocatable, all of the capacity is."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    problems: list[str] = []
    capacity = amounts(nanos(status.get("capacity"), problems, "status.capacity."))
    reported = status.get("allocatable")
    allocatable = amounts(nanos(reported, problems, "status.allocatable.")) if isinstance(reported, dict) else capacity
    ready = [
        entry.get("status") == "True"
        for entry in map(mapping, items(status.get("conditions")))
        if entry.get("type") == "Ready"
    ]
    return NodeView(
        name=name,
        labels=strings(metadata.get("labels")),
        taints=tuple(
            Taint(*(text(entry.get(key)) for key in ("key", "value", "effect")))
            for entry in map(mapping, items(spec.get("taints")))
        ),
        unschedulable=spec.get("unschedulable") is True,
        allocatable=allocatable,
        capacity=capacity,
        ready=ready[0] if ready else None,
        deleting=bool(metadata.get("deletionTimestamp")),
        problems=tuple(problems),
    )


def namespace(obj: Object) -> NamespaceView | None:
    metadata = mapping(obj.get("metadata"))
    name = text(metadata.get("name"))
    return NamespaceView(name=name, labels=strings(metadata.get("labels"))) if name else None


def volume_claim(obj: Object) -> VolumeClaimView | None:
    """A PersistentVolumeClaim."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name, volume = text(metadata.get("name")), text(spec.get("volumeName"))
    annotations = mapping(metadata.get("annotations"))
    if not name:
        return None
    return VolumeClaimView(
        namespace=text(metadata.get("namespace")) or "default",
        name=name,
        volume=volume,
        storage_class=text(annotations.get("volume.beta.kubernetes.io/storage-class"))
        or text(spec.get("storageClassName")),
        lost=status.get("phase") == "Lost",
        deleting=bool(metadata.get("deletionTimestamp")),
        bound=bool(volume) and "pv.kubernetes.io/bind-completed" in annotations,
        single_pod="ReadWriteOncePod" in texts(spec.get("accessModes")),
        request=nanos(mapping(spec.get("resources")).get("requests"), []).get("storage", 0),
        access=frozenset(texts(spec.get("accessModes"))),
        mode=text(spec.get("volumeMode")) or "Filesystem",
        selector=label_selector(spec["selector"]) if isinstance(spec.get("selector"), dict) else EVERYTHING,
        selected=text(annotations.get("volume.kubernetes.io/selected-node")),
    )


def volume(obj: Object) -> VolumeView | None:
    """A PersistentVolume."""
    metadata, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    name = text(metadata.get("name"))
    if not name:
        return None
    claim = mapping(spec.get("claimRef"))
    return VolumeView(
        name=name,
        node_terms=node_terms(mapping(spec.get("nodeAffinity")).get("required")),
        labels=strings(metadata.get("labels")),
        capacity=nanos(spec.get("capacity"), []).get("storage", 0),
        storage_class=text(spec.get("storageClassName")),
        access=frozenset(texts(spec.get("accessModes"))),
        mode=text(spec.get("volumeMode")) or "Filesystem",
        claimed=(text(claim.get("namespace")), text(claim.get("name"))) if claim else None,
        available=text(mapping(obj.get("status")).get("phase")) in ("Available", "Pending", ""),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def storage_class(obj: Object) -> StorageClassView | None:
    """A StorageClass. Its places are terms about nodes' labels."""
    name = text(mapping(obj.get("metadata")).get("name"))
    if not name:
        return None
    places = (
        tuple(
            Requirement(text(row.get("key")), "In", texts(row.get("values")))
            for row in map(mapping, items(mapping(term).get("matchLabelExpressions")))
        )
        for term in items(obj.get("allowedTopologies"))
    )
    return StorageClassView(
        name=name, waits=obj.get("volumeBindingMode") == "WaitForFirstConsumer",
        provisioner=text(obj.get("provisioner")), places=tuple(NodeTerm(place, (), "") for place in places if place),
    )  # fmt: skip


def quota(obj: Object) -> QuotaView | None:
    """A ResourceQuota, with the limits that its status confirms, those of its spec before that."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    ignored: list[str] = []
    return QuotaView(
        namespace=text(metadata.get("namespace")) or "default",
        name=name,
        hard=nanos(status.get("hard") or spec.get("hard"), ignored),
        used=nanos(status.get("used"), ignored),
        scoped=bool(spec.get("scopes") or spec.get("scopeSelector")),
    )


def budget(obj: Object) -> BudgetView | None:
    """A PodDisruptionBudget; one with an empty selector protects nothing here, as in the scheduler."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    selector = label_selector(spec.get("selector"))
    return BudgetView(
        namespace=text(metadata.get("namespace")) or "default",
        name=name,
        selector=NOTHING if selector.everything else selector,
        allowed=number(status.get("disruptionsAllowed")),
        disrupted=frozenset(mapping(status.get("disruptedPods"))),
    )


def claim(obj: Object) -> ClaimView | None:
    """A ResourceClaim from its API object."""
    metadata, spec, status = (mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    devices = mapping(spec.get("devices"))
    allocation = status.get("allocation")
    return ClaimView(
        namespace=text(metadata.get("namespace")) or "default",
        name=name,
        uid=text(metadata.get("uid")),
        owner=owner_of(metadata),
        deleting=bool(metadata.get("deletionTimestamp")),
        allocated=isinstance(allocation, dict),
        node_terms=node_terms(mapping(allocation).get("nodeSelector")),
        classes=dict(_request_classes(devices)),
        extended_for=_extended_for(metadata),
        reserved_for=tuple(text(consumer.get("uid")) for consumer in map(mapping, items(status.get("reservedFor")))),
        spec=devices,
        binding=claim_binding(name, status),
    )


def _extended_for(metadata: Object) -> str:
    if mapping(metadata.get("annotations")).get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return ""
    owners = map(mapping, items(metadata.get("ownerReferences")))
    return next((text(owner.get("uid")) for owner in owners if owner.get("controller") is True), "")


def _request_classes(devices: Object) -> list[tuple[str, str]]:
    classes: list[tuple[str, str]] = []
    for request in map(mapping, items(devices.get("requests"))):
        name = text(request.get("name"))
        if isinstance(request.get("exactly"), dict):
            classes.append((name, text(mapping(request["exactly"]).get("deviceClassName"))))
        classes.extend(
            (f"{name}/{text(choice.get('name'))}", text(choice.get("deviceClassName")))
            for choice in map(mapping, items(request.get("firstAvailable")))
        )
    return classes


def device_class(obj: Object) -> DeviceClassView | None:
    name = text(mapping(obj.get("metadata")).get("name"))
    metadata, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    resource, created = text(spec.get("extendedResourceName")), text(metadata.get("creationTimestamp"))
    return DeviceClassView(name=name, resource=resource, created=created, spec=spec) if name else None


READERS: Final[Mapping[str, Callable[[Object], Any]]] = {
    "Pod": pod,
    "Node": node,
    "Namespace": namespace,
    "PersistentVolumeClaim": volume_claim,
    "PersistentVolume": volume,
    "StorageClass": storage_class,
    "ResourceQuota": quota,
    "PodDisruptionBudget": budget,
    "ResourceClaim": claim,
    "DeviceClass": device_class,
}
"""By kind."""


def views(objects: Iterable[Object]) -> list[Any]:
    """The views of all objects whose kind matters to scheduling, in their order."""
    views = (READERS[kind](obj) for obj in objects if (kind := text(mapping(obj).get("kind"))) in READERS)
    return [view for view in views if view is not None]
