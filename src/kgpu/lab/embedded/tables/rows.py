"""The columns of each built-in kind, and their cells: one row per kind.

Columns are written as ``Name!`` (the name), ``Desired#`` (integer), ``Suspend?`` (boolean), ``Created At@`` (date),
with ``+`` for those that only ``-o wide`` shows. Other kinds have Name and Created At, as on the real server.
"""
# ruff: noqa: E501 - rows of a table

from __future__ import annotations

from typing import Final, NamedTuple

from kgpu.lab.embedded.tables import cells as c
from kgpu.lab.embedded.tables.text import (
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    age,
    at,
    count,
    created,
    joined,
    labels,
    name,
    selector,
)


class KindTable(NamedTuple):
    """A kind's columns and cells."""

    columns: str
    cells: tuple[Cell, ...]


def _pod_part(path: str) -> tuple[Cell, Cell]:
    """Containers and Images."""
    return joined(f"{path}.containers", "name"), joined(f"{path}.containers", "image")


_TEMPLATE: Final = "spec.template.spec"
_WORKLOAD: Final = (*_pod_part(_TEMPLATE), selector("spec.selector"))
_EVENT: Final = KindTable(
    "Last Seen, Type, Reason, Object, Subobject+, Source+, Message, First Seen+, Count+, Name!+",
    (c.event_last, at("type"), at("reason"), c.event_object, c.event_part, c.event_source, c.event_message, c.event_first,
     c.event_count, name),
)  # fmt: skip
_BINDING: Final = KindTable(
    "Name!, Role, Age, Users+, Groups+, ServiceAccounts+",
    (name, c.role_ref, age, c.subjects("User"), c.subjects("Group"), c.subjects("ServiceAccount")),
)
_HOOKS: Final = KindTable("Name!, Webhooks#, Age", (name, count("webhooks"), age))
POD_COLUMNS: Final = "Name!, Ready, Status, Restarts, Age, IP+, Node+, Nominated Node+, Readiness Gates+"
DEFAULT: Final = KindTable("Name!, Created At@", (name, created))
ROWS: Final[dict[tuple[str, str], KindTable]] = {
    ("", "configmaps"): KindTable("Name!, Data, Age", (name, count("data", "binaryData"), age)),
    ("", "endpoints"): KindTable("Name!, Endpoints, Age", (name, c.endpoints, age)),
    ("", "events"): _EVENT,
    ("events.k8s.io", "events"): _EVENT,
    ("", "namespaces"): KindTable("Name!, Status, Age", (name, at("status.phase"), age)),
    ("", "nodes"): KindTable(
        "Name!, Status, Roles, Age, Version, Internal-IP+, External-IP+, OS-Image+, Kernel-Version+, Container-Runtime+",
        (name, c.node_status, c.node_roles, age, at("status.nodeInfo.kubeletVersion"), c.node_address("InternalIP"),
         c.node_address("ExternalIP"), c.text_or("status.nodeInfo.osImage", UNKNOWN),
         c.text_or("status.nodeInfo.kernelVersion", UNKNOWN),
         c.text_or("status.nodeInfo.containerRuntimeVersion", UNKNOWN)),
    ),
    ("", "persistentvolumeclaims"): KindTable(
        "Name!, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, VolumeMode+",
        (name, c.volume_phase, at("spec.volumeName"), c.claim_capacity, c.claim_modes, c.storage_class_of,
         at("spec.volumeAttributesClassName", UNSET), age, at("spec.volumeMode", UNSET)),
    ),
    ("", "persistentvolumes"): KindTable(
        "Name!, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age, "
        "VolumeMode+",
        (name, at("spec.capacity.storage", "0"), c.volume_modes, at("spec.persistentVolumeReclaimPolicy"), c.volume_phase,
         c.volume_claim, c.storage_class_of, at("spec.volumeAttributesClassName", UNSET), at("status.reason"), age,
         at("spec.volumeMode", UNSET)),
    ),
    ("", "podtemplates"): KindTable(
        "Name!, Containers, Images, Pod Labels", (name, *_pod_part("template.spec"), labels("template.metadata.labels"))
    ),
    ("", "replicationcontrollers"): KindTable(
        "Name!, Desired#, Current#, Ready#, Age, Containers+, Images+, Selector+",
        (name, at("spec.replicas", 0), at("status.replicas", 0), at("status.readyReplicas", 0), age,
         *_pod_part(_TEMPLATE), labels("spec.selector")),
    ),
    ("", "resourcequotas"): KindTable("Name!, Request, Limit, Age", (name, c.quota(limits=False), c.quota(limits=True), age)),
    ("", "secrets"): KindTable("Name!, Type, Data, Age", (name, at("type"), count("data"), age)),
    ("", "serviceaccounts"): KindTable("Name!, Age", (name, age)),
    ("", "services"): KindTable(
        "Name!, Type, Cluster-IP, External-IP, Port(s), Age, Selector+",
        (name, at("spec.type"), c.cluster_ip, c.external_ip, c.service_ports, age, labels("spec.selector")),
    ),
    ("apiregistration.k8s.io", "apiservices"): KindTable(
        "Name!, Service, Available, Age", (name, c.api_service, c.api_available, age)
    ),
    ("apps", "controllerrevisions"): KindTable("Name!, Controller, Revision, Age", (name, c.controller, at("revision", 0), age)),
    ("apps", "daemonsets"): KindTable(
        "Name!, Desired#, Current#, Ready#, Up-to-date#, Available#, Node Selector, Age, Containers+, Images+, Selector+",
        (name, at("status.desiredNumberScheduled", 0), at("status.currentNumberScheduled", 0),
         at("status.numberReady", 0), at("status.updatedNumberScheduled", 0), at("status.numberAvailable", 0),
         labels(f"{_TEMPLATE}.nodeSelector"), age, *_WORKLOAD),
    ),
    ("apps", "deployments"): KindTable(
        "Name!, Ready, Up-to-date, Available, Age, Containers+, Images+, Selector+",
        (name, c.ratio("status.readyReplicas", "spec.replicas"), at("status.updatedReplicas", 0),
         at("status.availableReplicas", 0), age, *_pod_part(_TEMPLATE), c.deployment_selector),
    ),
    ("apps", "replicasets"): KindTable(
        "Name!, Desired#, Current#, Ready#, Age, Containers+, Images+, Selector+",
        (name, at("spec.replicas", 0), at("status.replicas", 0), at("status.readyReplicas", 0), age, *_WORKLOAD),
    ),
    ("apps", "statefulsets"): KindTable(
        "Name!, Ready, Age, Containers+, Images+",
        (name, c.ratio("status.readyReplicas", "spec.replicas"), age, *_pod_part(_TEMPLATE)),
    ),
    ("autoscaling", "horizontalpodautoscalers"): KindTable(
        "Name!, Reference, Targets, MinPods, MaxPods, Replicas, Age",
        (name, c.scale_target, c.scale_metrics, c.text_or("spec.minReplicas", UNSET), at("spec.maxReplicas", 0),
         at("status.currentReplicas", 0), age),
    ),
    ("batch", "cronjobs"): KindTable(
        "Name!, Schedule, Timezone, Suspend?, Active#, Last Schedule, Age, Containers+, Images+, Selector+",
        (name, at("spec.schedule"), at("spec.timeZone", NONE), c.boolean_text("spec.suspend"), count("status.active"),
         c.since_or_none("status.lastScheduleTime"), age, *_pod_part("spec.jobTemplate.spec.template.spec"),
         selector("spec.jobTemplate.spec.selector")),
    ),
    ("batch", "jobs"): KindTable(
        "Name!, Status, Completions, Duration, Age, Containers+, Images+, Selector+",
        (name, c.job_status, c.job_completions, c.job_duration, age, *_WORKLOAD),
    ),
    ("certificates.k8s.io", "certificatesigningrequests"): KindTable(
        "Name!, Age, SignerName, Requestor, RequestedDuration, Condition",
        (name, age, c.text_or("spec.signerName", NONE), at("spec.username"), c.requested, c.request_condition),
    ),
    ("networking.k8s.io", "ingressclasses"): KindTable(
        "Name!, Controller, Parameters, Age", (name, at("spec.controller"), c.class_parameters, age)
    ),
    ("networking.k8s.io", "ingresses"): KindTable(
        "Name!, Class, Hosts, Address, Ports, Age",
        (name, at("spec.ingressClassName", NONE), c.ingress_hosts, c.balancer, c.ingress_ports, age),
    ),
    # The real server's column of ages has no header.
    ("networking.k8s.io", "ipaddresses"): KindTable("Name!, ParentRef", (name, c.address_parent, age)),
    ("networking.k8s.io", "networkpolicies"): KindTable("Name!, Pod-Selector, Age", (name, selector("spec.podSelector"), age)),
    ("networking.k8s.io", "servicecidrs"): KindTable("Name!, CIDRs, Age", (name, c.joined_text("spec.cidrs"), age)),
    ("policy", "poddisruptionbudgets"): KindTable(
        "Name!, Min Available, Max Unavailable, Allowed Disruptions#, Age",
        (name, c.text_or("spec.minAvailable", "N/A"), c.text_or("spec.maxUnavailable", "N/A"),
         at("status.disruptionsAllowed", 0), age),
    ),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _BINDING,
    ("rbac.authorization.k8s.io", "rolebindings"): _BINDING,
    ("storage.k8s.io", "csidrivers"): KindTable(
        "Name!, AttachRequired?, PodInfoOnMount?, StorageCapacity?, TokenRequests, RequiresRepublish?, Modes, Age",
        (name, c.flag("spec.attachRequired", default=True), c.flag("spec.podInfoOnMount"), c.flag("spec.storageCapacity"),
         at("spec.tokenRequests", UNSET), c.flag("spec.requiresRepublish"), c.joined_text("spec.volumeLifecycleModes"), age),
    ),
    ("storage.k8s.io", "csinodes"): KindTable("Name!, Drivers#, Age", (name, count("spec.drivers"), age)),
    ("storage.k8s.io", "storageclasses"): KindTable(
        "Name!, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
        (c.storage_class_name, at("provisioner"), at("reclaimPolicy", "Delete"), at("volumeBindingMode", "Immediate"),
         c.flag("allowVolumeExpansion"), age),
    ),
    ("storage.k8s.io", "volumeattachments"): KindTable(
        "Name!, Attacher!, PV, Node, Attached?, Age",
        (name, at("spec.attacher"), at("spec.source.persistentVolumeName"), at("spec.nodeName"), c.flag("status.attached"),
         age),
    ),
    ("storage.k8s.io", "volumeattributesclasses"): KindTable("Name!, DriverName, Age", (name, at("driverName"), age)),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _HOOKS,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _HOOKS,
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): KindTable(
        "Name!, Validations#, ParamKind, Age", (name, count("spec.validations"), c.params("spec.paramKind"), age)
    ),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"): KindTable(
        "Name!, PolicyName, ParamRef, Age", (name, at("spec.policyName"), c.param_ref, age)
    ),
    ("scheduling.k8s.io", "priorityclasses"): KindTable(
        "Name!, Value#, Global-Default?, Age, PreemptionPolicy",
        (name, at("value", 0), c.flag("globalDefault"), age, at("preemptionPolicy")),
    ),
    ("coordination.k8s.io", "leases"): KindTable("Name!, Holder, Age", (name, at("spec.holderIdentity"), age)),
    ("node.k8s.io", "runtimeclasses"): KindTable("Name!, Handler, Age", (name, at("handler"), age)),
    ("discovery.k8s.io", "endpointslices"): KindTable(
        "Name!, AddressType, Ports, Endpoints, Age", (name, at("addressType"), c.slice_ports, c.slice_endpoints, age)
    ),
    ("resource.k8s.io", "deviceclasses"): KindTable("Name!, Age", (name, age)),
    ("resource.k8s.io", "resourceclaims"): KindTable("Name!, State, Age", (name, c.claim_state, age)),
    ("resource.k8s.io", "resourceclaimtemplates"): KindTable("Name!, Age", (name, age)),
    ("resource.k8s.io", "resourceslices"): KindTable(
        "Name!, Node, Driver, Pool, Age", (name, at("spec.nodeName"), at("spec.driver"), at("spec.pool.name"), age)
    ),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"): KindTable(
        "Name!, PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL",
        (name, at("spec.priorityLevelConfiguration.name"), at("spec.matchingPrecedence", 0),
         at("spec.distinguisherMethod.type", NONE), age, c.dangling),
    ),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): KindTable(
        "Name!, Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age",
        (name, at("spec.type"), at("spec.limited.nominalConcurrencyShares", NONE),
         *(at(f"spec.limited.limitResponse.queuing.{one}", NONE) for one in ("queues", "handSize", "queueLengthLimit")),
         age),
    ),
}  # fmt: skip
