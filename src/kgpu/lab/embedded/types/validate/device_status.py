"""The status of a ResourceClaim: who reserved it, what is allocated, what drivers say of the devices.

An allocation that is there may be cleared, never changed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from kgpu.lab.embedded.status import Object, Verbatim, bad_value, forbidden_field, required, shown
from kgpu.lab.embedded.types.prepare_claim import device_key
from kgpu.lab.embedded.types.validate.base import Errors, immutable, not_supported, too_long, too_many
from kgpu.lab.embedded.types.validate.device_internal import ALLOCATION, internal
from kgpu.lab.embedded.types.validate.device_requests import reference_rule
from kgpu.lab.embedded.types.validate.devices import (
    binding_conditions,
    conditions,
    configuration,
    device_name,
    driver_name,
    each,
    pool_name,
    raw_object,
    share_id,
    unique,
)
from kgpu.lab.embedded.types.validate.scheduling import node_selector

_MOST_RESERVED: Final = 256
_MOST_RESULTS: Final = 32
_MOST_CONFIGS: Final = 64  # the class's and the claim's
_MOST_REQUESTS: Final = 32
_MOST_CONDITIONS: Final = 8
_MOST_ADDRESSES: Final = 16
_KEY: Final = ("Driver", "Pool", "Device", "ShareID")
_SOURCES: Final = ("FromClaim", "FromClass")


def claim_status(errors: Errors, obj: Object, old: Object, known: Collection[str]) -> None:
    """Check an update of a claim's status. ``known``: what may refer to the claim's requests."""
    status, before = obj.get("status") or {}, old.get("status") or {}
    allocation, old_allocation = status.get("allocation"), before.get("allocation")
    reserved = status.get("reservedFor") or []
    at = "status.reservedFor"
    unique(errors, at, reserved, _consumer, most=_MOST_RESERVED, key=lambda row: str(row.get("uid") or ""))
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    _device_statuses(errors, "status.devices", status.get("devices") or [], {device_key(row) for row in results})
    if reserved and allocation is None:
        errors.append(forbidden_field(at, "may not be specified when `allocated` is not set"))
    elif obj["metadata"].get("deletionTimestamp") and any(
        row not in (before.get("reservedFor") or ()) for row in reserved
    ):
        words = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        errors.append(forbidden_field(at, words))
    if allocation is None:
        return
    if old_allocation is not None:
        if allocation != old_allocation:
            now, then = internal(ALLOCATION, allocation), internal(ALLOCATION, old_allocation)
            immutable(errors, "status.allocation", now, then)
        return
    _allocation(errors, "status.allocation", allocation, known)


def _consumer(errors: Errors, path: str, row: Object) -> None:
    for field in ("resource", "name", "uid"):
        if not row.get(field):
            errors.append(required(f"{path}.{field}"))


def _allocation(errors: Errors, path: str, allocation: Object, known: Collection[str]) -> None:
    refers = reference_rule(known)

    def result(errors: Errors, at: str, row: Object) -> None:
        refers(errors, f"{at}.request", row.get("request") or "")
        driver_name(errors, f"{at}.driver", row.get("driver"))
        pool_name(errors, f"{at}.pool", row.get("pool"))
        device_name(errors, f"{at}.device", row.get("device"))
        binding_conditions(errors, at, row)
        if row.get("shareID") is not None:
            share_id(errors, f"{at}.shareID", row["shareID"])

    def config(errors: Errors, at: str, row: Object) -> None:
        source = row.get("source") or ""
        if not source:
            errors.append(required(f"{at}.source"))
        elif source not in _SOURCES:
            errors.append(not_supported(f"{at}.source", source, _SOURCES))
        unique(errors, f"{at}.requests", row.get("requests"), refers, most=_MOST_REQUESTS)
        configuration(errors, at, row)

    devices = allocation.get("devices") or {}
    each(errors, f"{path}.devices.results", devices.get("results"), result, most=_MOST_RESULTS)
    each(errors, f"{path}.devices.config", devices.get("config"), config, most=_MOST_CONFIGS)
    if allocation.get("nodeSelector") is not None:
        node_selector(errors, f"{path}.nodeSelector", allocation["nodeSelector"])


def _device_statuses(errors: Errors, path: str, rows: list[Object], allocated: Collection[object]) -> None:
    def check(errors: Errors, at: str, row: Object) -> None:
        driver_name(errors, f"{at}.driver", row.get("driver"))
        pool_name(errors, f"{at}.pool", row.get("pool"))
        device_name(errors, f"{at}.device", row.get("device"))
        if row.get("shareID") is not None:
            share_id(errors, f"{at}.shareID", row["shareID"])
        if device_key(row) not in allocated:
            errors.append(bad_value(at, _shown(row), "must be an allocated device in the claim"))
        listed = row.get("conditions") or []
        if len(listed) > _MOST_CONDITIONS:
            errors.append(too_many(f"{at}.conditions", len(listed), _MOST_CONDITIONS))
        conditions(errors, f"{at}.conditions", listed)
        if row.get("data") is not None:
            raw_object(errors, f"{at}.data", row["data"])
        if row.get("networkData") is not None:
            _network(errors, f"{at}.networkData", row["networkData"])

    unique(errors, path, rows, check, key=_shown)


def _shown(row: Object) -> Verbatim:
    """The device as the messages quote its key."""
    return Verbatim(shown(dict(zip(_KEY, device_key(row), strict=True))))


def _network(errors: Errors, path: str, data: Object) -> None:
    for field, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(data.get(field) or "") > limit:
            errors.append(too_long(f"{path}.{field}", limit))
    unique(errors, f"{path}.ips", data.get("ips"), _interface_address, most=_MOST_ADDRESSES)


def _interface_address(errors: Errors, path: str, text: str) -> None:
    try:
        if "/" not in text:
            raise ValueError
        address = ipaddress.ip_interface(text)
    except ValueError:
        words = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
        errors.append(bad_value(path, text, words))
        return
    if text != address.with_prefixlen:
        errors.append(bad_value(path, text, f'must be in canonical form ("{address.with_prefixlen}")'))
