"""What the NRI plugin asks of the world around it, each with its fake beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from kgpu.base.clock import Clock
from kgpu.base.errors import HwError
from kgpu.formats.requirements import GpuFacts
from kgpu.hw.port import DriverReleasedError, Inventory, Reader
from kgpu.kube.port import PODS, KubeApi

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 30.0
"""For so long the driver's word is taken as it was: driver and GPUs do not change while containers use them."""


class Accounts(Protocol):
    """Tells a pod's service account."""

    async def account_of(self, namespace: str, name: str, uid: str) -> str:
        """Its name; "" when there is no such pod. Raises KubeError."""
        ...


class KubeAccounts:
    """By the API server's word. The runtime does not know, and what a pod says of itself proves nothing."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def account_of(self, namespace: str, name: str, uid: str) -> str:
        pod = await self._api.get(PODS, name, namespace=namespace)
        # Another pod of that name has another account.
        if pod is None or pod.get("metadata", {}).get("uid") != uid:
            return ""
        account = pod.get("spec", {}).get("serviceAccountName")
        return account if isinstance(account, str) else ""


class FakeAccounts:
    """(namespace, pod) to account."""

    def __init__(self, accounts: Mapping[tuple[str, str], str]) -> None:
        self.accounts = dict(accounts)
        self.problem: Exception | None = None

    async def account_of(self, namespace: str, name: str, uid: str) -> str:
        del uid
        if self.problem is not None:
            raise self.problem
        return self.accounts.get((namespace, name), "")


class Gpus:
    """What the driver says of itself and of each GPU, for requirements; nothing is known while it can't be read."""

    def __init__(self, reader: Reader | None, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._at: float | None = None
        self._facts: tuple[dict[int, GpuFacts], GpuFacts] = ({}, GpuFacts())
        self._reading = asyncio.Lock()

    async def facts(self) -> tuple[Mapping[int, GpuFacts], GpuFacts]:
        """By the number in the device node, and of the node as a whole."""
        if self._reader is None:
            return self._facts
        async with self._reading:
            now = self._clock.monotonic()
            if self._at is None or now - self._at > FRESH_SECONDS:
                try:
                    self._facts = gpu_facts(await self._reader.inventory())
                    self._at = now
                except DriverReleasedError:
                    return self._facts
                except HwError as problem:
                    log.warning("requirements of images can't be checked: %s", problem.one_line())
                    return {}, GpuFacts()
        return self._facts


def gpu_facts(inventory: Inventory) -> tuple[dict[int, GpuFacts], GpuFacts]:
    """The facts of an inventory: by minor number, and what all GPUs have in common."""
    cuda = "" if inventory.cuda_version is None else "{}.{}".format(*inventory.cuda_version)
    node = GpuFacts(cuda=cuda, driver=inventory.driver_version, subject="this node")
    by_minor = {
        gpu.minor: GpuFacts(
            cuda=cuda,
            driver=inventory.driver_version,
            arch="" if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability),
            brand=gpu.brand,
            subject=f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}",
        )
        for gpu in inventory.accelerators
    }
    return by_minor, node
