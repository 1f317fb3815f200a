"""Validation of the built-in kinds: errors in the real server's words, order and paths.

One row per kind, ``(group, plural)`` -> check; a kind without a row has its metadata checked alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kgpu.lab.embedded.kinds import ApiKind
from kgpu.lab.embedded.status import FieldError, Object
from kgpu.lab.embedded.types.validate import (
    claims,
    core,
    device_claims,
    device_slices,
    device_taint_rules,
    jobs,
    limits,
    networking,
    other_groups,
    pod_update,
    policies,
    rbac,
    services,
    texts,
    workloads,
)  # fmt: skip
from kgpu.lab.embedded.types.validate.base import Errors, metadata, metadata_update

Check = Callable[[Errors, Object, Object | None, str], None]

CHECKS: Final[dict[tuple[str, str], Check]] = {
    ("", "pods"): pod_update.check,
    ("", "persistentvolumes"): claims.volume,
    ("", "persistentvolumeclaims"): claims.claim,
    **workloads.CHECKS,
    **jobs.CHECKS,
    **core.CHECKS,
    **limits.CHECKS,
    **services.CHECKS,
    **networking.CHECKS,
    **rbac.CHECKS,
    **other_groups.CHECKS,
    **device_claims.CHECKS,
    **device_slices.CHECKS,
    **device_taint_rules.CHECKS,
    **policies.CHECKS,
}


def validate(kind: ApiKind, obj: Object, old: Object | None, subresource: str) -> list[FieldError]:
    """Every error; ``old`` is None on a create."""
    errors: Errors = []
    if old is not None:
        # As in the real server, where most kinds check it again, so that errors come twice.
        metadata_update(errors, obj["metadata"], old["metadata"])
    check = CHECKS.get(kind.key)
    if check is not None:
        check(errors, obj, old, subresource)
    elif not kind.stored:
        pass  # kinds that are not stored, such as reviews, have no name
    elif old is None:
        metadata(errors, obj["metadata"], namespaced=kind.namespaced, rule=texts.subdomain)
    else:
        metadata_update(errors, obj["metadata"], old["metadata"])
    return errors
