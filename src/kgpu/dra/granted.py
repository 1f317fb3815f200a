"""What a claim has been given on this node by one driver, and with which parameters: read from the claim's status.

Claims that several drivers serve have results and parameters of others, which are not looked at. Rules of precedence:
parameters of the claim before those of the device class, and of each the later before the earlier.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.typed import convert
from kgpu.formats.dra_config import ClaimDeviceConfig, parse_parameters
from kgpu.formats.names import DRA_GPU_DRIVER

MOST_DEVICES: Final = 32
"""Of all drivers together; the API's limit."""
_FROM_CLASS: Final = "FromClass"


class ClaimRefusedError(UserError):
    """A claim that can't be prepared as it is."""


class _ClaimPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class _Result(_ClaimPart, frozen=True):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share: str | None = msgspec.field(name="shareID", default=None)


class _Opaque(_ClaimPart, frozen=True):
    driver: str
    parameters: Any = None


class _Config(_ClaimPart, frozen=True):
    source: str
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None


class _Devices(_ClaimPart, frozen=True):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(_ClaimPart, frozen=True):
    devices: _Devices = _Devices()


class _Status(_ClaimPart, frozen=True):
    allocation: _Allocation | None = None


class _Metadata(_ClaimPart, frozen=True):
    name: str
    namespace: str
    uid: str


class _Claim(_ClaimPart, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedDevice:
    """A device of this node. ``request`` is ``name`` or ``name/alternative``; ``admin``: others may have it, too."""

    request: str
    pool: str
    device: str
    admin: bool = False
    share: str = ""


@dataclass(frozen=True, slots=True)
class GivenParameters:
    """Opaque parameters, for these requests or for all where there are none."""

    requests: tuple[str, ...]
    parameters: Any

    def concern(self, request: str) -> bool:
        """Whether they are for a request by name, or for that one of its alternatives."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedClaim:
    """A claim's devices of one driver on this node; ``parameters`` with the strongest first."""

    namespace: str
    name: str
    uid: str
    driver: str = DRA_GPU_DRIVER
    devices: tuple[GrantedDevice, ...] = ()
    parameters: tuple[GivenParameters, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def config(self, device: GrantedDevice, of_type: str, gates: Collection[str]) -> ClaimDeviceConfig:
        """The parameters that count for a device of this type. Raises ClaimRefusedError."""
        return self.entry(device, of_type, gates)[1]

    def entry(self, device: GrantedDevice, of_type: str, gates: Collection[str]) -> tuple[int, ClaimDeviceConfig]:
        """The same, with its position among ``parameters``; -1 where none are for it. Raises ClaimRefusedError."""
        for number, given in enumerate(self.parameters):
            if not given.concern(device.request):
                continue
            try:
                found = parse_parameters(given.parameters, gates, driver=self.driver)
            except ConfigError as error:
                what = f"claim {self}: the parameters of request {device.request}: {error.what}"
                raise ClaimRefusedError(what, error.expected, error.remedy) from error
            if found.type in (of_type, ""):
                return number, found
            if given.requests:
                raise ClaimRefusedError(
                    f"claim {self}: request {device.request} has got {device.device}, of type {of_type}, and "
                    f"parameters for devices of type {found.type}",
                    f"parameters for devices of type {of_type}",
                    "correct the kind of the parameters, or which requests they are for",
                )
        return -1, ClaimDeviceConfig(of_type)


def read_granted(claim: Any, *, driver: str, pool: str, uid: str) -> GrantedClaim:
    """A ResourceClaim from the API. Raises ClaimRefusedError where it is not the one of that uid, or not allocated."""
    try:
        read = convert(claim, _Claim)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ClaimRefusedError(
            f"a claim can't be read: {error}", "a ResourceClaim of resource.k8s.io", "look at the claim"
        ) from error
    named = f"{read.metadata.namespace}/{read.metadata.name}"
    if read.metadata.uid != uid:
        raise ClaimRefusedError(
            f"claim {named} is another one: its uid is {read.metadata.uid}, not {uid}", "the claim that the pod has",
            "nothing: the pod of the former claim ends",
        )  # fmt: skip
    if read.status.allocation is None:
        raise ClaimRefusedError(
            f"claim {named} is not allocated", "devices that the scheduler has allocated",
            f"nothing if it was just released; otherwise look at it: kubectl -n {read.metadata.namespace} describe "
            f"resourceclaim {read.metadata.name}",
        )  # fmt: skip
    devices = read.status.allocation.devices
    own = [result for result in devices.results or () if result.driver == driver]
    for result in own:
        if result.pool != pool:
            raise ClaimRefusedError(
                f"claim {named}: {result.device} is of the pool {result.pool}", f"devices of this node's pool, {pool}",
                "nothing: the pod is to run on another node; if it stays, delete it",
            )  # fmt: skip
    return GrantedClaim(
        namespace=read.metadata.namespace, name=read.metadata.name, uid=uid, driver=driver,
        devices=tuple(
            GrantedDevice(
                request=one.request, pool=one.pool, device=one.device, admin=bool(one.admin_access),
                share=one.share or "",
            )
            for one in own[:MOST_DEVICES]
        ),
        parameters=_strongest_first(devices.config or (), driver),
    )  # fmt: skip


def _strongest_first(configs: Collection[_Config], driver: str) -> tuple[GivenParameters, ...]:
    given: dict[bool, list[GivenParameters]] = {False: [], True: []}
    for one in configs:
        if one.opaque is not None and one.opaque.driver == driver:
            found = GivenParameters(one.requests or (), one.opaque.parameters)
            given[one.source == _FROM_CLASS].insert(0, found)
    return (*given[False], *given[True])
