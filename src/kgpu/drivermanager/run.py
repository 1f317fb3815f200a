"""Takes the steps of ``plan.py`` over the API server and the machine, and gives back what it held however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kgpu.base.clock import Clock
from kgpu.base.errors import ConfigError, HostError, KubeError
from kgpu.base.printable import one_line
from kgpu.drivermanager import plan
from kgpu.drivermanager.config import ManagerSettings
from kgpu.drivermanager.eviction import Eviction, of_all_pods, of_gpu_pods
from kgpu.drivermanager.model import LocalPod, ManagedNode, ManagerAction, ManagerStep, read_node, read_pod
from kgpu.drivermanager.port import DriverMachine
from kgpu.fit.selector_text import parse_selector
from kgpu.formats import names
from kgpu.host.device_holders import DeviceHolder
from kgpu.host.kernel_modules import ModuleInUseError
from kgpu.kube.nodes import get_node
from kgpu.kube.port import NODES, PODS, KubeApi, KubeRefusedError, Object, Selector

T = TypeVar("T")
LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 5.0
"""After an eviction that was refused."""
NAMED: Final = 3
ATTEMPTS: Final = 30
"""Requests to the API server before its silence counts; ``LOOK_SECONDS`` apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerLimits:
    """How long something is waited for, in seconds. ``told`` is how often a wait is told."""

    operands: float = 300.0
    mofed: float = 900.0
    told: float = 30.0


class DriverManager:
    """One run on one node. ``say`` gets lines for the log."""

    def __init__(
        self, settings: ManagerSettings, machine: DriverMachine, api: KubeApi, *, clock: Clock,
        say: Callable[[str], None], limits: ManagerLimits | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._machine = machine
        self._api = api
        self._clock = clock
        self._say = say
        self._limits = limits or ManagerLimits()
        self._hold = plan.Hold()

    async def uninstall(self) -> None:
        """Make the machine ready for the driver's container. Raises HostError, KubeError, ConfigError.

        Whatever happens, the Node is given back; an error of that is told in the log.
        """
        if error := parse_selector(self._settings.selector).error:
            raise ConfigError(
                f"DRAIN_POD_SELECTOR_LABEL can't be read: {error}", "labels such as app=training,tier!=web",
                "correct the variable",
            )  # fmt: skip
        machine, node = self._machine.state(), await self._node()
        try:
            for step in plan.steps(self._settings, machine, node):
                self._say(f"{step.action}: {step.why}")
                await self._take(step)
        except BaseException:
            await self._give_back_at_last()
            raise

    async def _take(self, step: ManagerStep) -> None:
        acts: Mapping[ManagerAction, Callable[[], Awaitable[None]]] = {
            ManagerAction.MARK_PRE_INSTALLED: self._mark_pre_installed,
            ManagerAction.UNUSED: self._check_unused,
            ManagerAction.HOLD: self._take_hold,
            ManagerAction.OPERANDS: self._wait_for_operands,
            ManagerAction.EVICT: lambda: self._evict(of_gpu_pods),
            ManagerAction.CLAIMS: self._check_claims,
            ManagerAction.UNLOAD: self._unload,
            ManagerAction.UNMOUNT: _plain(self._machine.unmount),
            ManagerAction.NOUVEAU: self._unload_nouveau,
            ManagerAction.MOFED: self._wait_for_mofed,
            ManagerAction.GIVE_BACK: self._give_back,
        }
        await acts[step.action]()

    # --- the Node ---

    async def _node(self) -> ManagedNode:
        return read_node(await self._asked(lambda: get_node(self._api, self._settings.node)))

    async def _asked(self, call: Callable[[], Awaitable[T]]) -> T:
        """The API server's answer; its silence is borne for a while. Raises KubeError."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await call()
            except KubeRefusedError:
                raise
            except KubeError as error:
                if attempt == ATTEMPTS:
                    raise
                if attempt == 1:
                    self._say(error.one_line())
                await self._clock.sleep(LOOK_SECONDS)
        raise AssertionError("unreachable")

    async def _patch(self, change: Callable[[ManagedNode], dict[str, Any]]) -> None:
        """Change the Node as it is at that moment: read again if somebody was faster."""
        while patch := change(await self._node()):
            try:
                await self._write(patch)
            except KubeRefusedError as refused:
                if not refused.conflict:
                    raise
                await self._clock.sleep(LOOK_SECONDS)
            else:
                return

    async def _write(self, patch: dict[str, Any]) -> None:
        await self._asked(lambda: self._api.patch(NODES, self._settings.node, patch))

    async def _mark_pre_installed(self) -> None:
        await self._patch(plan.mark_pre_installed)
        raise HostError(
            "the host has a driver of its own, so that none is installed in a container"
            f" ({names.LABEL_DEPLOY_PREFIX}driver={names.PRE_INSTALLED})",
            "a node without a driver",
            "nothing: the driver's pod leaves this node. To use a container's, remove the host's driver and the label",
        )

    async def _take_hold(self) -> None:
        def change(node: ManagedNode) -> dict[str, Any]:
            self._hold, patch = plan.take(self._settings, node)
            return patch

        await self._patch(change)

    async def _give_back(self) -> None:
        await self._patch(plan.give_back)

    async def _give_back_at_last(self) -> None:
        try:
            await asyncio.shield(self._give_back())
        except (KubeError, asyncio.CancelledError) as error:
            self._say(f"the node is not given back: {error}; the next driver manager on it does that")

    # --- pods ---

    async def _pods(self) -> tuple[LocalPod, ...]:
        selector = Selector(fields=(("spec.nodeName", self._settings.node),))
        listing = await self._asked(lambda: self._api.list(PODS, selector=selector))
        return tuple(map(read_pod, listing.items))

    async def _wait_for_operands(self) -> None:
        """Give them their time; whoever is left keeps the modules from being unloaded, and is named then."""
        until = self._clock.monotonic() + self._limits.operands
        while left := plan.stopping(await self._pods(), self._hold):
            if self._clock.monotonic() >= until:
                self._say(f"still there after {self._limits.operands:.0f} s: {_pods_named(left)}")
                return
            await self._clock.sleep(LOOK_SECONDS)

    async def _evict(self, choose: Callable[[tuple[LocalPod, ...], ManagerSettings], Eviction]) -> None:
        """Evict pods until none of them is left. Raises HostError."""
        begun = told = self._clock.monotonic()
        answers: dict[str, str] = {}
        while True:
            chosen = choose(await self._pods(), self._settings)
            if chosen.refused:
                raise HostError(
                    "pods may not be evicted: " + _named([f"{pod.where}: {why}" for pod, why in chosen.refused]),
                    "pods that their owners make anew", "delete these pods, or let the operator upgrade drivers",
                )  # fmt: skip
            if not chosen.going:
                return
            for pod in chosen.going:
                if not pod.leaving:
                    answers[pod.uid] = await self._evict_one(pod)
            now, waiting = (
                self._clock.monotonic(),
                _named([f"{pod.where}: {answers.get(pod.uid) or 'it is ending'}" for pod in chosen.going]),
            )
            if self._settings.timeout and now - begun >= self._settings.timeout:
                raise HostError(
                    f"pods are left after {self._settings.timeout:.0f} s: {waiting}", "a node without them",
                    "look at what keeps them, such as a PodDisruptionBudget",
                )  # fmt: skip
            if now - told >= self._limits.told:
                told = now
                self._say(f"waiting for {waiting}")
            await self._clock.sleep(AGAIN_SECONDS if any(answers.values()) else LOOK_SECONDS)

    async def _evict_one(self, pod: LocalPod) -> str:
        """Ask for a pod's eviction; why it was refused, "" if not."""
        eviction: Object = {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }  # fmt: skip
        try:
            await self._asked(lambda: self._api.create(PODS, eviction, subresource="eviction"))
        except KubeRefusedError as refused:
            return "" if refused.code in {404, 409} else one_line(refused.message, 120)
        return ""

    async def _check_unused(self) -> None:
        if found := of_gpu_pods(await self._pods(), self._settings).pods:
            raise HostError(
                f"pods with GPUs are on this node, which no upgrade has emptied: {_pods_named(found)}",
                "a node without them, as their driver would be exchanged under them",
                f"let an upgrade empty it: kgpu node upgrade-driver {self._settings.node}",
            )

    async def _check_claims(self) -> None:
        if held := plan.holding_claims(await self._pods()):
            raise HostError(
                f"pods still hold resource claims: {_pods_named(held)}", "no claim of a GPU", "delete these pods"
            )

    # --- the machine ---

    async def _unload(self) -> None:
        """Unload the modules, once whoever uses them has ended. Raises HostError."""
        drains = self._settings.auto_drain and plan.evicts(self._settings, await self._node())
        until = self._clock.monotonic() + self._settings.unload_timeout
        while True:
            try:
                self._machine.unload()
            except ModuleInUseError as busy:
                if self._clock.monotonic() >= until:
                    if not drains:
                        raise await self._in_use() from busy
                    self._say("the driver is still in use; all other pods are evicted as well (ENABLE_AUTO_DRAIN)")
                    await self._evict(of_all_pods)
                    drains, until = False, self._clock.monotonic() + self._settings.unload_timeout
            else:
                return
            await self._clock.sleep(LOOK_SECONDS)

    async def _in_use(self) -> HostError:
        """Who keeps the driver, for the person who can end that."""
        holders = self._machine.holders()
        pods = await self._pods()
        who = _named([_holder(holder, pods) for holder in holders]) or "a kernel module or a program that can't be seen"
        return HostError(
            f"the driver is in use and can't be unloaded: {who}",
            "nobody who has a GPU open",
            "delete these pods, or stop these programs on the node",
        )

    async def _unload_nouveau(self) -> None:
        try:
            self._machine.unload_nouveau()
        except ModuleInUseError as error:
            raise HostError(
                "nouveau has the GPUs and can't be unloaded, as it is in use", "no other driver for NVIDIA's GPUs",
                "blacklist nouveau (options nouveau modeset=0), make the initramfs anew, and reboot the node",
            ) from error  # fmt: skip

    async def _wait_for_mofed(self) -> None:
        """Wait for the network cards' driver. Raises HostError."""
        begun = told = self._clock.monotonic()
        while not self._machine.mofed_ready(on_host=self._settings.host_mofed):
            now = self._clock.monotonic()
            if now - begun >= self._limits.mofed:
                raise HostError(
                    f"the network cards' driver (MOFED) has not come within {self._limits.mofed:.0f} s",
                    "mlx5_core on the host" if self._settings.host_mofed else "/run/mellanox/drivers/.driver-ready",
                    "look at the network operator's pods on this node, or switch driver.rdma off",
                )
            if now == begun or now - told >= self._limits.told:
                told = now
                self._say("waiting for the network cards' driver (MOFED)")
            await self._clock.sleep(LOOK_SECONDS)


def _plain(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        act()

    return call


def _holder(holder: DeviceHolder, pods: tuple[LocalPod, ...]) -> str:
    pod = next(
        (pod for pod in pods if (holder.pod and pod.uid == holder.pod) or holder.container in pod.containers), None
    )
    return str(holder) if pod is None else f"{holder.program} (pid {holder.pid}) of pod {pod.where}"


def _pods_named(pods: tuple[LocalPod, ...]) -> str:
    return _named([pod.where for pod in pods])


def _named(rows: list[str]) -> str:
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return "; ".join(rows[:NAMED]) + more
