"""What an update of a pod may change: images, a sooner deadline, added tolerations, removed gates; its status."""

from __future__ import annotations

import difflib
import json
from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, forbidden_field, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import (
    Errors,
    immutable,
    metadata_update,
    syntax,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.pod import pod, pod_created
from kgpu.lab.embedded.types.validate.pod_claims import claim_statuses, extended_claim
from kgpu.lab.embedded.types.validate.scheduling import tolerations

_MAX_INT32: Final = 2**31 - 1
_UPDATABLE: Final = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)
_SYSTEM_CONDITIONS: Final = frozenset({"PodScheduled", "Ready", "Initialized"})


def check(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    """Check a create or an update of a pod, or of its subresource."""
    if old is None:
        pod(errors, obj)
        pod_created(errors, obj)
    elif subresource == "status":
        _status(errors, obj, old)
    elif subresource == "ephemeralcontainers":
        _ephemeral(errors, obj, old)
    elif subresource == "resize":
        metadata_update(errors, obj["metadata"], old["metadata"])
        pod(errors, obj)
    else:
        _update(errors, obj, old)


def _update(errors: Errors, obj: Object, old: Object) -> None:
    metadata_update(errors, obj["metadata"], old["metadata"])
    pod(errors, obj)
    new, before = obj["spec"], old["spec"]
    for field in ("containers", "initContainers"):
        if len(new.get(field) or ()) != len(before.get(field) or ()):
            errors.append(forbidden_field(f"spec.{field}", "pod updates may not add or remove containers"))
            return
        for index, container in enumerate(new.get(field) or ()):
            image = container.get("image", "")
            if not image:
                errors.append(required(f"spec.{field}[{index}].image"))
            if image != image.strip():
                words = "must not have leading or trailing whitespace"
                errors.append(bad_value(f"spec.{field}[{index}].image", image, words))
    if not _deadline(errors, new.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")):
        return
    _only_added(errors, new.get("tolerations") or [], before.get("tolerations") or [])
    known = {gate.get("name") for gate in before.get("schedulingGates") or ()}
    for index, gate in enumerate(new.get("schedulingGates") or ()):
        if gate.get("name") not in known:
            words = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            errors.append(forbidden_field(f"spec.schedulingGates[{index}].name", words))
    if new == before:
        return
    munged = _munged(errors, new, before)
    if munged != before:
        words = f"pod updates may not change fields other than {_UPDATABLE}\n{_diff(before, munged)}"
        errors.append(forbidden_field("spec", words))


def _munged(errors: Errors, new: Object, before: Object) -> Object:
    """The new spec with the old values of all fields that may change."""
    munged = dict(new)
    for field in ("containers", "initContainers"):
        if field in new:
            munged[field] = [
                {**container, "image": was.get("image")}
                for container, was in zip(new[field], before[field], strict=True)
            ]
    fields = ["activeDeadlineSeconds", "schedulingGates", "tolerations"]
    if before.get("terminationGracePeriodSeconds", 0) < 0 and new.get("terminationGracePeriodSeconds") == 1:
        fields.append("terminationGracePeriodSeconds")
    if before.get("schedulingGates"):
        _gated(errors, new, before)
        fields += ["nodeSelector"]
        affinity = {key: value for key, value in (new.get("affinity") or {}).items() if key != "nodeAffinity"}
        if (before.get("affinity") or {}).get("nodeAffinity"):
            affinity["nodeAffinity"] = before["affinity"]["nodeAffinity"]
        if affinity or "affinity" in before:
            munged["affinity"] = affinity
        else:
            munged.pop("affinity", None)
    for field in fields:
        if field in before:
            munged[field] = before[field]
        else:
            munged.pop(field, None)
    return munged


def _gated(errors: Errors, new: Object, before: Object) -> None:
    """Check that a gated pod's node selector and required node affinity only become narrower."""
    selector, was = new.get("nodeSelector") or {}, before.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in was.items()):
        words = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        errors.append(bad_value("spec.nodeSelector", selector, words))
    required_field = "requiredDuringSchedulingIgnoredDuringExecution"
    path = f"spec.affinity.nodeAffinity.{required_field}.nodeSelectorTerms"

    def terms(spec: Object) -> list[Object]:
        node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        return (node.get(required_field) or {}).get("nodeSelectorTerms") or []

    new_terms, old_terms = terms(new), terms(before)
    if old_terms and len(new_terms) != len(old_terms):
        words = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        errors.append(bad_value(path, new_terms, words))
        return
    for index, (term, was_term) in enumerate(zip(new_terms, old_terms, strict=False)):
        if not _only_narrower(term, was_term):
            words = "only additions are allowed (no mutations or deletions)"
            errors.append(bad_value(f"{path}[{index}]", term, words))


def _only_narrower(term: Object, was: Object) -> bool:
    fields = ("matchExpressions", "matchFields")
    if not any(was.get(field) for field in fields):
        return not any(term.get(field) for field in fields)
    return all((term.get(field) or [])[: len(was.get(field) or ())] == (was.get(field) or []) for field in fields)


def _deadline(errors: Errors, new: int | None, before: int | None) -> bool:
    at = "spec.activeDeadlineSeconds"
    if new is None:
        if before is not None:
            errors.append(bad_value(at, None, "must not update from a positive integer to nil value"))
        return True
    if not 0 <= new <= _MAX_INT32:
        errors.append(bad_value(at, new, texts.between(0, _MAX_INT32)))
        return False
    if before is not None and before < new:
        errors.append(bad_value(at, new, "must be less than or equal to previous value"))
        return False
    return True


def _only_added(errors: Errors, new: list[Object], before: list[Object]) -> None:
    def bare(toleration: Object) -> Object:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    new_bare = [bare(toleration) for toleration in new]
    if any(bare(toleration) not in new_bare for toleration in before):
        words = "existing toleration can not be modified except its tolerationSeconds"
        errors.append(forbidden_field("spec.tolerations", words))
        return
    tolerations(errors, "spec.tolerations", new)


def _diff(before: Object, after: Object) -> str:
    """A unified diff of the specs; the real server shows the same changes in its internal type."""

    def lines(spec: Object) -> list[str]:
        return json.dumps(spec, indent=1, sort_keys=True).splitlines(keepends=True)

    return "".join(difflib.unified_diff(lines(before), lines(after), n=3))


def _ephemeral(errors: Errors, obj: Object, old: Object) -> None:
    metadata_update(errors, obj["metadata"], old["metadata"])
    pod(errors, obj)
    new = {
        container["name"]: container
        for container in obj["spec"].get("ephemeralContainers") or ()
        if container.get("name")
    }
    for index, old_container in enumerate(old["spec"].get("ephemeralContainers") or ()):
        at, new_container = f"spec.ephemeralContainers[{index}]", new.get(old_container["name"])
        if new_container is None:
            errors.append(
                forbidden_field(at, f'existing ephemeral containers "{old_container["name"]}" may not be removed\n')
            )
        elif new_container != old_container:
            errors.append(
                forbidden_field(at, f'existing ephemeral containers "{old_container["name"]}" may not be changed\n')
            )


def _status(errors: Errors, obj: Object, old: Object) -> None:
    metadata_update(errors, obj["metadata"], old["metadata"])
    new, before = obj.get("status") or {}, old.get("status") or {}
    for index, condition in enumerate(new.get("conditions") or ()):
        if condition.get("type") not in _SYSTEM_CONDITIONS:
            syntax(errors, f"status.conditions[{index}].Type", condition.get("type", ""), texts.qualified)
    nominated = new.get("nominatedNodeName", "")
    if nominated and nominated != before.get("nominatedNodeName", ""):
        syntax(errors, "status.nominatedNodeName", nominated, texts.subdomain)
        if old["spec"].get("nodeName"):
            words = "may not be set on pods that are already bound to a node"
            errors.append(forbidden_field("status.nominatedNodeName", words))
    immutable(errors, "status.qosClass", new.get("qosClass", ""), before.get("qosClass", ""))
    for field in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        _transitions(errors, field, new, before, old["spec"])
    claim_statuses(errors, new, obj["spec"])
    extended_claim(errors, new, obj["spec"])
    _addresses(errors, new)


def _addresses(errors: Errors, status: Object) -> None:
    """Check that a pod has one address of each IP family at most."""
    found = [str(row.get("ip", "")) for row in status.get("podIPs") or ()]
    for index, address in enumerate(found):
        syntax(errors, f"status.podIPs[{index}]", address, texts.ip_address)
    if len(found) > 1 and len({":" in address for address in found}) < len(found):
        words = "may specify no more than one IP for each IP family"
        errors.append(bad_value("status.podIPs", status["podIPs"], words))


def _transitions(errors: Errors, field: str, new: Object, before: Object, spec: Object) -> None:
    """Check that a terminated container stays so, unless its restart policy starts it again."""
    policies = {
        container.get("name"): container.get("restartPolicy")
        for container in spec.get(field.replace("Statuses", "s")) or ()
    }
    states = {status.get("name"): status.get("state") or {} for status in new.get(field) or ()}
    for index, was in enumerate(before.get(field) or ()):
        ended = (was.get("state") or {}).get("terminated")
        name = was.get("name")
        if ended is None or name not in states or "terminated" in states[name]:
            continue
        policy = policies.get(name) or spec.get("restartPolicy")
        if field == "initContainerStatuses" and policy == "Always" and policies.get(name) is None:
            policy = "OnFailure" if spec.get("restartPolicy") != "Always" else "Always"
        if field == "ephemeralContainerStatuses":
            policy = "Never"
        if policy == "Always" or (policy == "OnFailure" and ended.get("exitCode", 0) != 0):
            continue
        words = "may not be transitioned to non-terminated state"
        errors.append(forbidden_field(f"status.{field}[{index}].state", words))
