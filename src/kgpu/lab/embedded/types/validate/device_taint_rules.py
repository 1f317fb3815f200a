"""DeviceTaintRules: the devices that are meant, by driver, pool and name, and the taint that they get.

Source: ValidateDeviceTaintRule and its kin in pkg/apis/resource/validation of Kubernetes 1.35.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kgpu.lab.embedded.status import Object
from kgpu.lab.embedded.types.validate import texts
from kgpu.lab.embedded.types.validate.base import Errors, metadata, metadata_update, too_many
from kgpu.lab.embedded.types.validate.devices import conditions, device_name, driver_name, pool_name, taint

_MOST_CONDITIONS: Final = 8
_SELECTS: Final = (("driver", driver_name), ("pool", pool_name), ("device", device_name))


def _rule(errors: Errors, obj: Object, old: Object | None, subresource: str) -> None:
    if old is None:
        metadata(errors, obj["metadata"], namespaced=False, rule=texts.subdomain)
    else:
        metadata_update(errors, obj["metadata"], old["metadata"])
    if subresource == "status":
        rows = (obj.get("status") or {}).get("conditions") or ()
        conditions(errors, "status.conditions", rows)
        if len(rows) > _MOST_CONDITIONS:
            errors.append(too_many("status.conditions", len(rows), _MOST_CONDITIONS))
        return
    spec = obj.get("spec") or {}
    selector = spec.get("deviceSelector") or {}
    for field, check in _SELECTS:
        if selector.get(field) is not None:
            check(errors, f"spec.deviceSelector.{field}", selector[field])
    taint(errors, "spec.taint", spec.get("taint") or {})


CHECKS: Final[dict[tuple[str, str], Callable[[Errors, Object, Object | None, str], Any]]] = {
    ("resource.k8s.io", "devicetaintrules"): _rule,
}
