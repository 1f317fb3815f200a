"""Admin access to devices: only in namespaces whose label allows it (DRAAdminAccess).

The real server checks it at the beginning of validation, so that the other errors are told with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kgpu.formats.names import ADMIN_ACCESS_LABEL
from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object, forbidden_field, invalid
from kgpu.lab.embedded.types.validate import validate

_GROUP: Final = "resource.k8s.io"
_WORDS: Final = f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"


class DeviceAdminAccess:
    """Refuses claims, templates and allocations with admin access in other namespaces."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        path = _asked(review)
        if not path:
            return
        namespace = reads.get("", "namespaces", "", review.namespace) or {"metadata": {}}
        if (namespace["metadata"].get("labels") or {}).get(ADMIN_ACCESS_LABEL) != "true":
            name = review.name or str(review.obj["metadata"].get("name") or "")
            rest = validate(review.kind, review.obj, review.old, review.subresource)
            raise invalid(_GROUP, review.kind.kind, name, [forbidden_field(path, _WORDS), *rest])


def _asked(review: Review) -> str:
    """The path of the first field that asks for it, "" for none; specs never change."""
    kind, status = review.kind, review.subresource == "status"
    if kind.group != _GROUP or review.operation not in {"CREATE", "UPDATE"}:
        return ""
    if kind.plural == "resourceclaims" and status and review.operation == "UPDATE":
        path = _first("status.allocation.devices.results", _results(review.obj))
        return "" if _first("", _results(review.old or {})) else path
    if review.operation != "CREATE" or review.subresource:
        return ""
    spec = review.obj.get("spec") or {}
    if kind.plural == "resourceclaimtemplates":
        spec = spec.get("spec") or {}
    elif kind.plural != "resourceclaims":
        return ""
    requests = (spec.get("devices") or {}).get("requests") or ()
    return _first("spec.devices.requests", [request.get("exactly") or {} for request in requests])


def _results(claim: Object) -> Iterable[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def _first(path: str, rows: Iterable[Object]) -> str:
    return next((f"{path}[{index}].adminAccess" for index, row in enumerate(rows) if row.get("adminAccess")), "")
