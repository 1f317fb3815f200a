"""The subresources of one object: scale, binding, eviction, token.

Sources: pkg/registry/core/pod/storage (binding, eviction), apps/*/storage (scale), core/serviceaccount/storage (token).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from kgpu.lab.embedded.core.context import VerbContext, now, plain, success
from kgpu.lab.embedded.core.deleting import DeleteVerbs
from kgpu.lab.embedded.core.model import API_AUDIENCE, Call, DeleteOptions, Review, StoredObject, copied
from kgpu.lab.embedded.core.patch_errors import AppliedPatch, settle_applied
from kgpu.lab.embedded.core.writing import APPLY, WriteVerbs, metadata_of
from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.selectors import matches, of_label_selector
from kgpu.lab.embedded.status import (
    ApiError,
    Object,
    bad_request,
    bad_value,
    conflict,
    forbidden,
    invalid,
    not_found,
)

_POD_DETAIL: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_VIOLATES: Final = "Cannot evict pod as it would violate the pod's disruption budget."
_MOST_DISRUPTED: Final = 2000
_TOKEN_SECONDS: Final = 3600
_LEAST_TOKEN_SECONDS: Final = 600
# Bodies of requests, whose kinds are not served by themselves.
_TOKEN_REQUEST: Final = ApiKind(
    group="authentication.k8s.io", version="v1", plural="tokenrequests", kind="TokenRequest", namespaced=True,
    schema="io.k8s.api.authentication.v1.TokenRequest",
)  # fmt: skip
_SCALE: Final = ApiKind(
    group="autoscaling", version="v1", plural="scales", kind="Scale", namespaced=True,
    schema="io.k8s.api.autoscaling.v1.Scale",
)  # fmt: skip
_EVICTION: Final = ApiKind(
    group="policy", version="v1", plural="evictions", kind="Eviction", namespaced=True,
    schema="io.k8s.api.policy.v1.Eviction",
)  # fmt: skip


class Subresources:
    """Works on one ``VerbContext``."""

    def __init__(self, context: VerbContext, writing: WriteVerbs, deleting: DeleteVerbs) -> None:
        self._context = context
        self._writing = writing
        self._deleting = deleting

    # Scale

    def scale(self, kind: ApiKind, namespace: str, name: str) -> StoredObject:
        """The Scale of an object."""
        stored = self._context.need(kind, namespace, name)
        return StoredObject(self._scale_of(kind, self._context.at(stored, kind).obj), stored.revision)

    def _scale_of(self, kind: ApiKind, obj: Object) -> Object:
        if kind.custom:
            custom = self._context.custom
            if custom is None:
                raise not_found(kind.group, f"{kind.plural}/scale", obj["metadata"]["name"])
            return custom.scale_of(kind, obj)
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        metadata = {name: obj["metadata"][name] for name in _POD_DETAIL if name in obj["metadata"]}
        shown_status: Object = {"replicas": status.get("replicas", 0)}
        selector = selector_text(kind, spec.get("selector"))
        if selector:
            shown_status["selector"] = selector
        return {
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
            "spec": {"replicas": spec["replicas"]} if spec.get("replicas") else {}, "status": shown_status,
        }  # fmt: skip

    def update_scale(self, kind: ApiKind, namespace: str, name: str, scale: Any, call: Call) -> StoredObject:
        """PUT of a Scale: only its replicas go into the object."""
        old = self._context.need(kind, namespace, name)
        live = self._context.at(old, kind).obj
        if not isinstance(scale, dict):
            raise bad_request("expected input object type to be Scale")
        scale = self._context.rules(_SCALE).decode(_SCALE, scale, call)
        call = dataclasses.replace(call, repeated=None)
        metadata = metadata_of(scale)
        if metadata.get("name") not in (None, "", name):
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
            )
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        if replicas < 0:
            error = bad_value("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid("autoscaling", "Scale", name, [error])
        uid = metadata.get("uid")
        if uid and uid != live["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live['metadata']['uid']}"
            raise conflict(kind.group, f"{kind.plural}/scale", name, why)
        if kind.custom:
            assert self._context.custom is not None
            new = copied(self._context.custom.with_scale(kind, live, scale))
        else:
            new = copied(live)
            new["spec"]["replicas"] = replicas
        # A resourceVersion in the Scale is a precondition; without one the newest object is scaled.
        new["metadata"]["resourceVersion"] = metadata.get("resourceVersion") or live["metadata"]["resourceVersion"]
        reviewed = ({**scale, "spec": {"replicas": replicas}}, self._scale_of(kind, live))
        replaced = self._writing.replace(kind, old, new, call, "scale", admitted_as=reviewed)
        return StoredObject(self._scale_of(kind, replaced.obj), replaced.revision)

    def patch_scale(
        self, kind: ApiKind, namespace: str, name: str, content_type: str, body: Any, *, call: Call
    ) -> StoredObject:
        """PATCH of a Scale with any type of patch."""
        live = self.scale(kind, namespace, name).obj
        if content_type == APPLY:
            changed = {**live, "spec": {**live["spec"], **(body.get("spec") or {})}} if isinstance(body, dict) else body
            if call.repeated is not None:
                settle_applied(call.repeated, call)
            return self.update_scale(kind, namespace, name, changed, dataclasses.replace(call, repeated=None))
        schema = self._context.rules(_SCALE).schema(_SCALE)
        changed = self._context.patching.apply_patch(content_type, live, body, schema)
        scale = self._writing.patched(_SCALE, AppliedPatch.of(content_type, body, changed), call)
        return self.update_scale(kind, namespace, name, scale, dataclasses.replace(call, repeated=None))

    # Pods

    def bind(self, kind: ApiKind, namespace: str, name: str, binding: Object, call: Call) -> StoredObject:
        """Bind a pod to a node."""
        metadata = metadata_of(binding)
        if (metadata.get("name") or "") != name:
            raise bad_request("name in URL does not match name in Binding object")
        target = binding.get("target") or {}
        if not isinstance(target, dict) or not target.get("name"):
            raise plain(500, "target.name: Required value")
        if target.get("kind", "") not in ("", "Node"):
            raise plain(500, f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"')
        old = self._context.need(kind, namespace, name)
        self._admit(kind, namespace, name, binding, subresource="binding", call=call)
        pod = old.obj
        about = ("", "pods/binding", name)
        for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            wanted, current = metadata.get(field), pod["metadata"][field]
            if wanted and wanted != current:
                why = f"Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {current}"
                raise conflict("", "pods", name, _storage_error(namespace, name, why))
        spec = pod.get("spec") or {}
        if "deletionTimestamp" in pod["metadata"]:
            raise conflict(*about, f"pod {name} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise conflict(*about, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise conflict(*about, f"pod {name} has non-empty .spec.schedulingGates")
        changed = dict(pod["metadata"])
        for field in ("annotations", "labels"):
            if metadata.get(field):
                changed[field] = {**(changed.get(field) or {}), **metadata[field]}
        status = dict(pod.get("status") or {})
        status.pop("nominatedNodeName", None)
        status["conditions"] = with_condition(status.get("conditions"), {"type": "PodScheduled", "status": "True"})
        new = {**pod, "metadata": changed, "spec": {**spec, "nodeName": target["name"]}, "status": status}
        self._context.commit(kind, new, call, old)
        return StoredObject(success(201), 0)

    def evict(self, kind: ApiKind, namespace: str, name: str, eviction: Object, call: Call) -> StoredObject:
        """Delete a pod if its disruption budget allows it."""
        if (metadata_of(eviction).get("name") or "") != name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = _delete_options(self._context.rules(_EVICTION).decode(_EVICTION, eviction, call), call)
        old = self._context.need(kind, namespace, name)
        self._admit(kind, namespace, name, eviction, subresource="eviction", call=call)
        pod = old.obj
        ignored = "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") in (
            "Succeeded", "Failed", "Pending",
        )  # fmt: skip
        if not ignored:
            budgets = self._budgets(pod)
            if len(budgets) > 1:
                message = (
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
                )
                raise plain(500, message)
            if budgets and not _unguarded(pod, budgets[0].obj):
                self._use_budget(budgets[0], name, dry_run=options.dry_run)
        if not options.dry_run:
            condition = {
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            }  # fmt: skip
            status = dict(pod.get("status") or {})
            status["conditions"] = with_condition(status.get("conditions"), condition)
            if options.version and options.version != str(old.revision):
                why = (
                    f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion "
                    f"in record ({old.revision}). The object might have been modified"
                )
                raise conflict("", "Pod", name, why)
            if options.uid in ("", pod["metadata"]["uid"]):
                marked = {**pod, "metadata": dict(pod["metadata"]), "status": status}
                self._context.commit(kind, marked, call, old)
            options = dataclasses.replace(options, version="")
        self._deleting.delete(kind, namespace, name, options, call)
        return StoredObject(success(201), 0)

    def _admit(self, kind: ApiKind, namespace: str, name: str, obj: Object, *, subresource: str, call: Call) -> None:
        review = Review(
            operation="CREATE", kind=kind, namespace=namespace, name=name, obj=obj, old=None, subresource=subresource,
            call=call,
        )  # fmt: skip
        self._context.admit(review)
        self._context.admitted(review)

    def _budgets(self, pod: Object) -> list[StoredObject]:
        budgets = []
        for stored in self._context.store.table(("policy", "poddisruptionbudgets")).scan(pod["metadata"]["namespace"]):
            selector = of_label_selector((stored.obj.get("spec") or {}).get("selector"))
            if selector is not None and matches(selector, pod["metadata"].get("labels") or {}):
                budgets.append(stored)
        return budgets

    def _use_budget(self, stored: StoredObject, pod: str, *, dry_run: bool) -> None:
        budget = stored.obj
        name, status = stored.name, dict(budget.get("status") or {})
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise _too_many(10, f"The disruption budget {name} is still being processed by the server.")
        allowed = status.get("disruptionsAllowed", 0)
        if allowed < 0:
            raise forbidden("policy", "poddisruptionbudget", name, "pdb disruptions allowed is negative")
        disrupted = status.get("disruptedPods") or {}
        if len(disrupted) > _MOST_DISRUPTED:
            why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
            raise forbidden("policy", "poddisruptionbudget", name, why)
        if not allowed:
            raise _too_many(0, _why_not(name, status))
        if dry_run:
            return
        status["disruptionsAllowed"] = allowed - 1
        if allowed == 1:
            condition = {
                "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
                "observedGeneration": status.get("observedGeneration", 0),
            }  # fmt: skip
            status["conditions"] = with_condition(status.get("conditions"), condition, probe=False)
        status["disruptedPods"] = {**disrupted, pod: now()}
        new = {**budget, "metadata": dict(budget["metadata"]), "status": status}
        self._context.store.put(("policy", "poddisruptionbudgets"), new)

    # Service accounts

    def token(self, kind: ApiKind, namespace: str, name: str, request: Object, call: Call) -> StoredObject:
        """A TokenRequest, answered by the authority."""
        request = self._context.rules(_TOKEN_REQUEST).decode(_TOKEN_REQUEST, request, call)
        metadata = metadata_of(request)
        for field, wanted, word in (("name", name, "name"), ("namespace", namespace, "namespace")):
            stated = metadata.get(field) or ""
            if stated and stated != wanted:
                error = bad_value(f"metadata.{field}", stated, f"must match the service account {word} if specified")
                raise invalid("authentication.k8s.io", "TokenRequest", name, [error])
        account = self._context.need(kind, namespace, name).obj
        if metadata.get("uid") not in (None, "", account["metadata"]["uid"]):
            why = (
                f"the UID in the token request ({metadata['uid']}) does not match the UID of the service account "
                f"({account['metadata']['uid']})"
            )
            raise conflict("authentication.k8s.io", "TokenRequest", name, why)
        self._admit(kind, namespace, name, request, subresource="token", call=call)
        spec = {"audiences": None, "expirationSeconds": None, "boundObjectRef": None, **(request.get("spec") or {})}
        spec["audiences"] = spec["audiences"] or [API_AUDIENCE]
        seconds = spec["expirationSeconds"] = (
            _TOKEN_SECONDS if (requested := spec["expirationSeconds"]) is None else requested
        )
        if seconds < _LEAST_TOKEN_SECONDS:
            error = bad_value("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
            raise invalid("authentication.k8s.io", "TokenRequest", "", [error])
        text, expires = self._context.authority.issue(account, spec)
        about = {
            "name": name, "namespace": namespace, "uid": account["metadata"]["uid"], "creationTimestamp": now(),
        }  # fmt: skip
        answer: Object = {
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": about, "spec": spec,
            "status": {"token": text, "expirationTimestamp": expires},
        }  # fmt: skip
        return StoredObject(answer, 0)


def with_condition(conditions: Any, condition: Object, *, probe: bool = True) -> list[Object]:
    """Conditions with ``condition`` in the place of that of its type; a changed status sets lastTransitionTime."""
    kept = list(conditions or ())
    position = next((at for at, entry in enumerate(kept) if entry.get("type") == condition["type"]), None)
    before = kept[position] if position is not None else {}
    changed = before.get("status") != condition["status"]
    replacement = {**({"lastProbeTime": None} if probe else {}), **condition}
    replacement["lastTransitionTime"] = now() if changed else before.get("lastTransitionTime")
    if position is None:
        return [*kept, replacement]
    return [*kept[:position], replacement, *kept[position + 1 :]]


def selector_text(kind: ApiKind, selector: Any) -> str:
    """A selector as a Scale shows it: sorted by key."""
    if kind.key == ("", "replicationcontrollers"):
        selector = {"matchLabels": selector or {}}
    texts = {"in": "{} in ({})", "notin": "{} notin ({})", "exists": "{}", "!": "!{}", "=": "{}={}"}
    rows = sorted(of_label_selector(selector) or (), key=lambda term: term.key)
    return ",".join(texts[term.operator].format(term.key, ",".join(sorted(term.values))) for term in rows)


def _storage_error(namespace: str, name: str, why: str) -> str:
    key = f"/registry/pods/{namespace}/{name}"
    return f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"


def _delete_options(eviction: Object, call: Call) -> DeleteOptions:
    options = eviction.get("deleteOptions") or {}
    preconditions = options.get("preconditions") or {}
    return DeleteOptions(
        grace=options.get("gracePeriodSeconds"),
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
        propagation=options.get("propagationPolicy") or "",
        dry_run=call.dry_run or bool(options.get("dryRun")),
    )


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _unguarded(pod: Object, budget: Object) -> bool:
    """Whether an unready pod may go regardless: the budget's policy allows it, or there are enough healthy pods."""
    if _ready(pod):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _why_not(name: str, status: Object) -> str:
    rows = status.get("conditions") or ()
    condition: Object = next((row for row in rows if row.get("type") == "DisruptionAllowed"), {})
    refused = condition.get("status") == "False" and condition.get("message")
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    start = f"The disruption budget {name} does not allow evicting pods currently"
    if refused and condition.get("reason") == "SyncFailed":
        return f"{start} because it failed sync: {condition['message']}"
    if healthy <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    return f"{start} ({condition['reason']}): {condition['message']}" if refused else start


def _too_many(seconds: int, cause: str) -> ApiError:
    details: Object = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if seconds:
        details["retryAfterSeconds"] = seconds
    return ApiError(429, "TooManyRequests", _VIOLATES, details)
