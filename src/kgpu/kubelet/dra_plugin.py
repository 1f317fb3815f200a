"""A DRA driver's two sockets: the one that the kubelet finds it by, and the one that prepares claims.

Both versions of the API are served, v1 and v1beta1, whose messages are the same. What is wrong with one claim is said
of that claim, and the others of the call go on. A socket whose file was removed is made again within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import UserError
from kgpu.kubelet.dra_health import HEALTH_SERVICE, HealthStream
from kgpu.kubelet.methods import PLUGIN_REGISTRATION, dra_methods
from kgpu.kubelet.model import ClaimDevice, ClaimLogic, ClaimRef
from kgpu.kubelet.pb import dra_v1_pb2 as dra
from kgpu.kubelet.pb import pluginregistration_v1_pb2 as registry
from kgpu.kubelet.rpc import RpcServer, Service

log = logging.getLogger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
VERSIONS: Final = ("v1", "v1beta1")
SERVED: Final = tuple(f"{version}.DRAPlugin" for version in VERSIONS)
"""As the kubelet chooses: the first that it knows."""
LOOK_S: Final = 1.0

T = TypeVar("T")


class DraPluginServer:
    """Serves ``logic`` as the driver ``name``. ``plugins`` and ``registrar`` are the kubelet's folders ``plugins`` and
    ``plugins_registry``; ``plugins_outside`` is the path of the first as the kubelet sees it.
    """

    def __init__(
        self, name: str, logic: ClaimLogic, *, plugins: Path, registrar: Path, plugins_outside: Path | None = None,
        clock: Clock | None = None, health: HealthStream | None = None,
    ) -> None:  # fmt: skip
        """``health``: what the kubelet is told of the devices."""
        self.name = name
        self._logic = logic
        self._clock = clock or SystemClock()
        self._folder = plugins / name
        answers = {"NodePrepareResources": self._prepare, "NodeUnprepareResources": self._unprepare}
        services = [Service(dra_methods(version), answers) for version in VERSIONS]
        self._health = health
        services += [health.service] if health is not None else []
        self._served = (*SERVED, *((HEALTH_SERVICE,) if health is not None else ()))
        self._driver = RpcServer(self._folder / "dra.sock", services)
        self._endpoint = (plugins_outside or plugins) / name / "dra.sock"
        info = {"GetInfo": self._info, "NotifyRegistrationStatus": self._notify}
        self._registration = RpcServer(registrar / f"{name}-reg.sock", [Service(PLUGIN_REGISTRATION, info)])
        self.registered = asyncio.Event()
        """Set once the kubelet has taken the driver."""
        self.refusal: str | None = "the kubelet has not asked yet"
        """Why the kubelet does not take the driver, None while it does."""

    async def start(self) -> None:
        """Listen, the driver first: the kubelet calls it as soon as it has found it. Raises KubeletError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._registration.path.parent.mkdir(parents=True, exist_ok=True)
        await self._driver.start()
        await self._registration.start()

    async def run(self) -> None:
        """Keep both sockets there, until cancelled. Raises KubeletError when one can't be made again."""
        while True:
            await self._clock.sleep(LOOK_S)
            for server in (self._driver, self._registration):
                if not server.exists:
                    log.warning("the socket %s is gone, and is made again", server.path)
                    await server.close()
                    server.path.parent.mkdir(parents=True, exist_ok=True)
                    await server.start()

    async def close(self) -> None:
        """Be found no more, then hang up."""
        await self._registration.close()
        if self._health is not None:
            self._health.close()
        await self._driver.close()

    async def _info(self, _request: Any) -> Any:
        return registry.PluginInfo(
            type=PLUGIN_TYPE, name=self.name, endpoint=str(self._endpoint), supported_versions=self._served
        )

    async def _notify(self, request: Any) -> Any:
        self.refusal = None if request.plugin_registered else request.error or "the kubelet does not say why"
        if self.refusal is None:
            self.registered.set()
        else:
            log.warning("the kubelet does not take the DRA driver %s: %s", self.name, self.refusal)
        return registry.RegistrationStatusResponse()

    async def _prepare(self, request: Any) -> Any:
        reply = dra.NodePrepareResourcesResponse()
        for claim in map(_ref, request.claims):
            found, problem = await _told(claim, self._logic.prepare)
            row = reply.claims[claim.uid]
            row.error = problem
            for device in found or ():
                row.devices.append(_message(device))
        return reply

    async def _unprepare(self, request: Any) -> Any:
        reply = dra.NodeUnprepareResourcesResponse()
        for claim in map(_ref, request.claims):
            _, problem = await _told(claim, self._logic.unprepare)
            reply.claims[claim.uid].error = problem
        return reply


async def _told(claim: ClaimRef, act: Callable[[ClaimRef], Awaitable[T]]) -> tuple[T | None, str]:
    """What came of a claim, and what was wrong. A defect is told of this claim, too, and never costs the others."""
    try:
        return await act(claim), ""
    except UserError as error:
        return None, error.one_line()
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.exception("claim %s/%s", claim.namespace, claim.name)
        return None, f"kgpu has a defect: {type(error).__name__}: {error}; to do: report it with the agent's log"


def _ref(claim: Any) -> ClaimRef:
    return ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _message(device: ClaimDevice) -> Any:
    message = dra.Device(
        request_names=device.requests, pool_name=device.pool, device_name=device.device, cdi_device_ids=device.cdi
    )
    if device.share:
        message.share_id = device.share
    return message
