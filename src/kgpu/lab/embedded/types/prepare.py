"""What the strategies of the real kinds set, keep and clear before a create or an update is validated.

A create clears the status and starts the generation; a main update keeps the status; an update of a subresource changes
only what that subresource is for. Sources: rest.BeforeCreate, rest.BeforeUpdate and each kind's strategy.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.prepare_claim import claim_status
from kgpu.lab.embedded.types.prepare_pod import pod_created, pod_updated
from kgpu.lab.embedded.types.shape import shape

# Kinds with a generation, and the fields whose change raises it; an object without one gets 1 at its first change.
_GENERATION: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "podtemplates"): ("template",),
    ("", "replicationcontrollers"): ("spec",),
    ("apps", "daemonsets"): ("spec",),
    ("apps", "deployments"): ("spec", "metadata.annotations"),
    ("apps", "replicasets"): ("spec",),
    ("apps", "statefulsets"): ("spec",),
    ("batch", "jobs"): ("spec",),
    ("batch", "cronjobs"): ("spec",),
    ("discovery.k8s.io", "endpointslices"): ("addressType", "endpoints", "ports", "metadata.labels"),
    ("networking.k8s.io", "ingresses"): ("spec",),
    ("networking.k8s.io", "ingressclasses"): ("spec",),
    ("networking.k8s.io", "networkpolicies"): ("spec",),
    ("policy", "poddisruptionbudgets"): ("spec",),
    ("resource.k8s.io", "deviceclasses"): ("spec",),
    ("resource.k8s.io", "devicetaintrules"): ("spec",),
    ("resource.k8s.io", "resourceslices"): ("spec",),
    ("scheduling.k8s.io", "priorityclasses"): (),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"): ("spec",),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): ("spec",),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): ("spec",),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"): ("spec",),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): ("webhooks",),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): ("webhooks",),
}
# Kinds whose status may come with a create.
_KEEPS_STATUS: Final = frozenset({("", "nodes")})
# Kinds whose status updates take no metadata at all.
_STATUS_ALONE: Final = frozenset(
    {
        ("resource.k8s.io", "devicetaintrules"),
        ("resource.k8s.io", "resourceclaims"),
        ("storage.k8s.io", "volumeattachments"),
        ("networking.k8s.io", "servicecidrs"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    }
)
_OWNED: Final = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "uid", "generation")
_RESET: Final = (*_OWNED, "labels", "annotations", "finalizers", "ownerReferences")
_CORE: Final = frozenset({"apiVersion", "kind", "metadata"})


def prepare(kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> None:
    """Prepare ``obj`` in place; ``old`` is None on a create."""
    if old is None:
        _create(kind, obj)
    elif subresource in {"", "scale"}:
        _update(kind, obj, old)
    else:
        _update_part(kind, obj, old, subresource)


def _create(kind: ApiKind, obj: Object) -> None:
    meta = obj["metadata"]
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(name, None)
    if "status" in kind.subresources and kind.key not in _KEEPS_STATUS:
        clear_status(kind, obj)
    if kind.key in _GENERATION:
        meta["generation"] = 1
    elif not meta.get("generation"):
        meta.pop("generation", None)
    special = _ON_CREATE.get(kind.key)
    if special is not None:
        special(obj)


def _update(kind: ApiKind, obj: Object, old: Object) -> None:
    keep_owned(obj, old)
    if "status" in kind.subresources:
        keep(obj, old, "status")
    special = _ON_UPDATE.get(kind.key)
    if special is not None:
        special(obj, old)
    watched = _GENERATION.get(kind.key)
    if watched and any(_at(obj, path) != _at(old, path) for path in watched):
        obj["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1


def _update_part(kind: ApiKind, obj: Object, old: Object, subresource: str) -> None:
    """Keep the old object but for the subresource's part (and metadata, if the real server takes it)."""
    if kind.key == ("", "pods") and subresource in {"ephemeralcontainers", "resize"}:
        pod_updated(obj, old, subresource)
        keep(obj, old, "status")
        keep_owned(obj, old, _RESET if subresource == "ephemeralcontainers" else _OWNED)
        if obj["spec"] != old["spec"]:
            obj["metadata"]["generation"] = int(old["metadata"].get("generation", 0)) + 1
        return
    part = "spec" if subresource == "finalize" else "status"
    for name in {*obj, *old} - _CORE - {part}:
        keep(obj, old, name)
    keep_owned(obj, old, _RESET if kind.key in _STATUS_ALONE else _OWNED)
    special = _ON_STATUS.get((kind.key, subresource))
    if special is not None:
        special(obj, old)


def keep_owned(obj: Object, old: Object, names: tuple[str, ...] = _OWNED) -> None:
    """Keep metadata that no update changes. A uid that the client names stays and is left to validation."""
    meta, before = obj["metadata"], old["metadata"]
    for name in names:
        if name == "uid" and meta.get("uid"):
            continue
        if name == "deletionGracePeriodSeconds" and meta.get(name) is not None and name in before:
            continue
        keep(meta, before, name)


def keep(obj: Object, old: Object, name: str) -> None:
    """Restore the old value, or remove the field if it had none."""
    if name in old:
        obj[name] = old[name]
    else:
        obj.pop(name, None)


def clear_status(kind: ApiKind, obj: Object) -> None:
    """Replace the status with an empty one, as the type prints it."""
    obj.pop("status", None)
    shape(kind.schema).settle_field(obj, "status")


def _at(obj: Object, path: str) -> object:
    value: object = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value or None


def _now() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _namespace(obj: Object) -> None:
    obj["status"] = {"phase": "Active"}
    finalizers = obj["spec"].setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    if obj["metadata"].get("name"):
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _namespace_updated(obj: Object, old: Object) -> None:
    keep(obj["spec"], old["spec"], "finalizers")


def _volume(obj: Object) -> None:
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": _now()}


def _volume_status(obj: Object, old: Object) -> None:
    new, before = obj["status"], old.get("status", {})
    stamp, stamp_before = new.get("lastPhaseTransitionTime"), before.get("lastPhaseTransitionTime")
    if new.get("phase") == before.get("phase"):
        if stamp is None:
            keep(new, before, "lastPhaseTransitionTime")
    elif stamp is None or stamp == stamp_before:
        new["lastPhaseTransitionTime"] = _now()


def _claim(obj: Object) -> None:
    obj["status"] = {"phase": "Pending"}
    _claim_sources(obj, {})


def _claim_sources(obj: Object, old: Object) -> None:
    """DataSource and dataSourceRef mirror each other."""
    del old
    spec = obj["spec"]
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source and not reference:
        spec["dataSourceRef"] = dict(source)
    elif reference and not source and not reference.get("namespace"):
        spec["dataSource"] = {key: value for key, value in reference.items() if key != "namespace"}


def _job(obj: Object) -> None:
    spec, meta = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    labels = spec["template"]["metadata"].setdefault("labels", {})
    # In the real server labels that defaulting took from the template are the same map, so they grow with it.
    shared = meta.get("labels") == labels and bool(labels)
    for key in ("job-name", "batch.kubernetes.io/job-name"):
        labels.setdefault(key, meta.get("name", ""))
    for key in ("controller-uid", "batch.kubernetes.io/controller-uid"):
        labels.setdefault(key, meta.get("uid", ""))
    if shared:
        meta["labels"] = dict(labels)
    matched = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    matched.setdefault("batch.kubernetes.io/controller-uid", meta.get("uid", ""))


_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"


def _daemon_set(obj: Object) -> None:
    annotations = obj["metadata"].setdefault("annotations", {})
    value = annotations.get(_TEMPLATE_GENERATION, "")
    annotations[_TEMPLATE_GENERATION] = value if value.isdecimal() and int(value) >= 1 else "1"


def _daemon_set_updated(obj: Object, old: Object) -> None:
    value = old["metadata"].get("annotations", {}).get(_TEMPLATE_GENERATION, "0")
    generation = int(value) if value.isdecimal() else 0
    if obj["spec"]["template"] != old["spec"]["template"]:
        generation += 1
    obj["metadata"].setdefault("annotations", {})[_TEMPLATE_GENERATION] = str(generation)


def _secret_updated(obj: Object, old: Object) -> None:
    if not obj.get("type"):
        keep(obj, old, "type")


def _fold_string_data(obj: Object) -> None:
    import base64

    texts = obj.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        obj["data"] = {**obj.get("data", {}), **encoded}


def _secret(obj: Object, old: Object) -> None:
    _secret_updated(obj, old)
    _fold_string_data(obj)


def _deployment_status(obj: Object, old: Object) -> None:
    keep(obj["metadata"], old["metadata"], "labels")


def _pod_status(obj: Object, old: Object) -> None:
    keep(obj["metadata"], old["metadata"], "ownerReferences")
    status, before = obj["status"], old.get("status", {})
    for name in ("qosClass", "observedGeneration"):
        if not status.get(name) and before.get(name):
            status[name] = before[name]
    known = {condition.get("type"): condition.get("observedGeneration") for condition in before.get("conditions") or ()}
    for condition in status.get("conditions") or ():
        if not condition.get("observedGeneration") and known.get(condition.get("type")):
            condition["observedGeneration"] = known[condition["type"]]


def _approval(obj: Object, old: Object) -> None:
    obj["status"] = {**old.get("status", {}), "conditions": obj.get("status", {}).get("conditions", [])}


def _pod(obj: Object) -> None:
    obj["metadata"]["generation"] = 1
    pod_created(obj)


_ON_CREATE: Final[dict[tuple[str, str], Callable[[Object], None]]] = {
    ("", "namespaces"): _namespace,
    ("", "persistentvolumes"): _volume,
    ("", "persistentvolumeclaims"): _claim,
    ("", "pods"): _pod,
    ("", "secrets"): _fold_string_data,
    ("apps", "daemonsets"): _daemon_set,
    ("batch", "jobs"): _job,
}
_ON_UPDATE: Final[dict[tuple[str, str], Callable[[Object, Object], None]]] = {
    ("", "namespaces"): _namespace_updated,
    ("", "persistentvolumeclaims"): _claim_sources,
    ("", "pods"): lambda obj, old: pod_updated(obj, old, ""),
    ("", "secrets"): _secret,
    ("apps", "daemonsets"): _daemon_set_updated,
}
_ON_STATUS: Final[dict[tuple[tuple[str, str], str], Callable[[Object, Object], None]]] = {
    (("", "pods"), "status"): _pod_status,
    (("", "persistentvolumes"), "status"): _volume_status,
    (("apps", "deployments"), "status"): _deployment_status,
    (("resource.k8s.io", "resourceclaims"), "status"): claim_status,
    (("certificates.k8s.io", "certificatesigningrequests"), "approval"): _approval,
}
