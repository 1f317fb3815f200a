"""What a pod's status says of its ResourceClaims: those made from templates, and the one for extended resources."""

from __future__ import annotations

from typing import Final

from kgpu.lab.embedded.status import Object, bad_value, required
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, duplicate, needed, syntax

_MAPPED: Final = ("containerName", "resourceName", "requestName")


def claim_statuses(errors: Errors, status: Object, spec: Object) -> None:
    """Check the names of the claims that were made for a pod."""
    known = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    claim_names: set[str] = set()
    for index, claim_status in enumerate(status.get("resourceClaimStatuses") or ()):
        at, name = f"status.resourceClaimStatuses[{index}]", claim_status.get("name", "")
        if name not in known:
            words = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(bad_value(f"{at}.name", name, words))
        if name in claim_names:
            errors.append(duplicate(f"{at}.name", name))
        claim_names.add(name)
        if claim_status.get("resourceClaimName") is not None:
            syntax(errors, f"{at}.name", claim_status["resourceClaimName"], texts.subdomain)


def extended_claim(errors: Errors, status: Object, spec: Object) -> None:
    """Check the claim that the scheduler made for extended resources, and which containers it is for."""
    extended = status.get("extendedResourceClaimStatus")
    if extended is None:
        return
    path = "status.extendedResourceClaimStatus"
    containers = {
        container.get("name"): container
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    }
    mappings = extended.get("requestMappings") or []
    if not mappings:
        errors.append(required(f"{path}.requestMappings", "at least one request mapping is required"))
    seen: set[tuple[str, ...]] = set()
    for index, mapping in enumerate(mappings):
        at = f"{path}.requestMappings[{index}]"
        names = tuple(str(mapping.get(field) or "") for field in _MAPPED)
        container = containers.get(names[0])
        if container is None:
            words = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
            errors.append(bad_value(f"{at}.containerName", names[0], words))
        elif names[1] not in ((container.get("resources") or {}).get("requests") or {}):
            words = (
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or "
                "spec.containers.resources.requests"
            )
            errors.append(bad_value(f"{at}.resourceName", names[1], words))
        syntax(errors, f"{path}.requestName", names[2], texts.label)
        if names in seen:
            errors.extend(duplicate(f"{at}.{field}", name) for field, name in zip(_MAPPED, names, strict=True))
        seen.add(names)
    needed(errors, f"{path}.resourceClaimName", extended.get("resourceClaimName"), texts.subdomain)
