"""The device plugin's state and decisions, without a socket or a clock.

``run.py`` feeds it configurations, readings and events, and asks for the resources to offer. Every answer to the
kubelet comes from here, so that a hung driver can't delay one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import HwError, UserError
from kgpu.base.service import StandingAdvice
from kgpu.deviceplugin import health as health_rules
from kgpu.deviceplugin import roster
from kgpu.deviceplugin.allocate import AllocationError, allocate
from kgpu.deviceplugin.config import PluginSettings, resolve, without_effect
from kgpu.deviceplugin.health import DeviceHealth
from kgpu.deviceplugin.model import GpuUnit, HostDevices, PluginDevice, PluginResource, ResourcePlan
from kgpu.deviceplugin.plan import plan
from kgpu.deviceplugin.prefer import PreferredDevices, prefer
from kgpu.deviceplugin.roster import PluginMemory
from kgpu.deviceplugin.topology import GpuTopology
from kgpu.formats.config_choice import REFUSED, ConfigText
from kgpu.formats.mps_folders import mps_control
from kgpu.formats.plugin_config import SharingKind
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.hw.port import Accelerator, HardwareEvent, HardwareFinding, Inventory, Link, Problem
from kgpu.hw.vendor import Pairing, vendor_of
from kgpu.hw.verdicts import GpuVerdict
from kgpu.kubelet.model import ContainerAllocation, DeviceState, PreferenceRequest

if TYPE_CHECKING:
    from kgpu.deviceplugin.weights import PairWeights


class PluginCore:
    """The state of one node's device plugin. Not thread-safe; every method is quick."""

    def __init__(
        self,
        *,
        overrides: Mapping[str, Any],
        env: Mapping[str, str],
        report: AdviceSink,
        facts: Callable[[PluginSettings], HostDevices],
        memory: PluginMemory,
        withdrawn: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``withdrawn()`` are the GPUs that are ordered to be offered to no pod, by UUID, and why."""
        self._withdrawn = withdrawn
        self._overrides = overrides
        self._env = env
        self._report = report
        self._facts = facts
        self._memory = memory
        self._standing = StandingAdvice()
        self.settings: PluginSettings | None = None
        self.host = HostDevices()
        self.accelerators: tuple[Accelerator, ...] = memory.accelerators
        self.topology = GpuTopology((), ())
        self.weights: PairWeights | None = None  # of vendors whose devices are chosen by them
        self.plan = ResourcePlan()
        self.health = DeviceHealth(illnesses=memory.illnesses)
        self.read = False  # whether an inventory or its failure is known
        self._exchanged = ""  # why there is no driver between two
        self._served: frozenset[str] = (
            frozenset()
        )  # resources whose MPS control daemon has served since the last config
        self._silent: frozenset[str] = frozenset()  # those of them whose daemon serves no longer
        self._replicas: dict[str, Counter[str]] = {}  # shares by resource and UUID
        self._rules, advice = health_rules.rules_from_env(env)
        self._tell(advice)

    # --- inputs ---

    def configure(self, config: ConfigText) -> None:
        """Apply a configuration. Raises UserError if it can't be used; the one in force then stays."""
        if config.problem is not None:
            raise config.problem
        self._configure(config, self._overrides)

    def _configure(self, config: ConfigText, overrides: Mapping[str, Any]) -> None:
        text = parse_config(config.text, source=config.name)
        self.settings = settings = resolve(text, overrides=overrides, env=self._env)
        self._memory = replace(self._memory, config=config.text, mig_strategy=settings.mig_strategy)
        self._tell(without_effect(settings))
        self._served = frozenset()
        self._replan()

    def configure_from_memory(self) -> bool:
        """Apply the last good configuration of an earlier run, with the MIG strategy of then where it does not go with
        that of now; False if there is none.
        """
        memory = self._memory
        if memory.config is None:
            return False
        then = {"mig_strategy": memory.mig_strategy} if memory.mig_strategy else {}
        for overrides in (self._overrides, {**self._overrides, **then}):
            try:
                self._configure(ConfigText(name="the last good configuration", text=memory.config), overrides)
            except UserError:
                continue
            return True
        return False

    def inventory(self, inventory: Inventory, links: Sequence[Link], now: float) -> None:
        """Apply a reading of the hardware."""
        self._exchanged = ""
        self.accelerators, advice = roster.merge(self.accelerators, inventory)
        self._tell(advice)
        self.topology = self.topology.updated(self.accelerators, links)
        self._weigh(links)
        self._observe(now)

    def _weigh(self, links: Sequence[Link]) -> None:
        if any(vendor_of(name).pairing is Pairing.WEIGHTS for name in self.vendors):
            from kgpu.deviceplugin.weights import PairWeights

            self.weights = (self.weights or PairWeights({}, {})).updated(self.accelerators, links)

    def unreadable(self, problem: HwError, now: float) -> None:
        """Apply that nothing can be read: every known device stays in the list as unhealthy."""
        finding = HardwareFinding(
            subject="", problem=Problem.CRASHED, what=problem.what, expected=problem.expected, remedy=problem.remedy
        )
        self.accelerators = tuple(
            gpu
            if not gpu.usable
            else replace(gpu, findings=(*gpu.findings, structs.replace(finding, subject=gpu.uuid)))
            for gpu in self.accelerators
        )
        self._observe(now)

    def unread(self) -> None:
        """Apply that nothing is read for a while although nothing is wrong: what an earlier run knew is offered."""
        self.read = True
        self.health = health_rules.remembered(self.health, self.accelerators, self._rules)
        self._replan()

    def exchanged(self, why: str) -> bool:
        """Apply that the driver is exchanged: no pod gets a device until the next one was read. True if that is new."""
        before, self._exchanged = self._exchanged, why
        return before != why

    def event(self, event: HardwareEvent, now: float) -> bool:
        """Apply an event; True if it changed a device's health."""
        before = self.health
        self.health, advice = health_rules.on_event(before, event, self._rules, now, self.accelerators)
        self._tell(advice)
        return self.health.illnesses != before.illnesses

    def verdicts(self, verdicts: Mapping[str, GpuVerdict] | None) -> bool:
        """Apply the health role's verdicts, None if nobody gives any; True if something changed."""
        before = self.health
        self.health, advice = health_rules.on_verdicts(before, verdicts, self._rules)
        self._tell(advice)
        return (self.health.judged, self.health.withdrawn) != (before.judged, before.withdrawn)

    def elsewhere(self, unhealthy: Mapping[str, str]) -> bool:
        """Apply what the vendor's own exporter says; True if something changed."""
        before = self.health
        self.health, advice = health_rules.on_exporter(before, unhealthy, self._rules)
        self._tell(advice)
        return self.health.elsewhere != before.elsewhere

    @property
    def health_socket(self) -> str:
        """Where the vendor's own exporter tells how well its devices are, "" where there is no such."""
        return next((socket for name in self.vendors if (socket := vendor_of(name).health_socket)), "")

    def daemons(self) -> bool:
        """Look which MPS control daemons serve; True if it are others than before."""
        if self.settings is None or not self.read:
            return False
        before = self.host
        self._replan()
        return (self.host.mps_daemons, self.host.mps_shares) != (before.mps_daemons, before.mps_shares)

    def _observe(self, now: float) -> None:
        self.read = True
        self.health, advice = health_rules.on_reading(self.health, self.accelerators, self._rules, now)
        self._tell(advice)
        self._replan()

    def _replan(self) -> None:
        if self.settings is None or not self.read:
            return
        self.host = self._facts(self.settings)
        missing = [ch for ch in self.settings.imex_channel_ids if ch not in self.host.imex_channels]
        resources = plan(self.accelerators, self.settings)
        if missing:
            resources = _without_imex(resources, missing, required=self.settings.imex_required)
        self._served |= self.host.mps_daemons
        self._silent = self._served - self.host.mps_daemons
        self._replicas = {
            resource.name: Counter(device.unit.uuid for device in resource.devices if device.is_replica)
            for resource in resources.resources
        }
        self.plan = resources = _without_mps(resources, self.settings, self.host, self._served)
        self._tell(self._standing.news(resources.advice))

    def _tell(self, advice: Sequence[Advice]) -> None:
        for record in advice:
            self._report(record)

    # --- outputs ---

    @property
    def vendors(self) -> tuple[str, ...]:
        """The vendors of the accelerators that are known."""
        return tuple(dict.fromkeys(gpu.vendor for gpu in self.accelerators))

    @property
    def memory(self) -> PluginMemory:
        """What a later run needs to remember."""
        return replace(
            self._memory,
            accelerators=self.accelerators,
            illnesses=self.health.illnesses,
        )

    @property
    def sick(self) -> bool:
        """True while a device may recover."""
        return bool(self.health.broken or self.health.illnesses or self.health.withdrawn)

    def states(self, resource: PluginResource) -> tuple[DeviceState, ...]:
        """The device list for the kubelet."""
        reason = self._reason
        bad = {unit for unit in dict.fromkeys(device.unit for device in resource.devices) if reason(unit)}
        return tuple(
            DeviceState(
                id=device.id,
                healthy=device.unit not in bad and not self._unserved(resource, device),
                numa_node=device.unit.numa_node,
            )
            for device in resource.devices
        )

    def allocate(self, name: str, ids: Sequence[str]) -> ContainerAllocation:
        """Answer Allocate for the resource ``name``. Raises AllocationError."""
        resource = self._resource(name)
        known = resource.by_id
        unhealthy = {
            wanted: reason
            for wanted in ids
            if wanted in known
            and (reason := self._reason(known[wanted].unit) or self._unserved(resource, known[wanted]))
        }
        assert self.settings is not None
        return allocate(resource, ids, self.settings, self.host, unhealthy=unhealthy)

    def prefer(self, name: str, request: PreferenceRequest) -> PreferredDevices:
        """Answer GetPreferredAllocation for the resource ``name``. Raises AllocationError."""
        assert self.settings is not None
        policy = self.settings.shared_policy
        return prefer(self._resource(name), request, self.topology, policy=policy, weights=self.weights)

    def _reason(self, unit: GpuUnit) -> str:
        """Why the unit is offered to no pod, "" if it is."""
        reasons = (self._exchanged, self._withdrawn().get(unit.gpu_uuid, ""), self.health.reason(unit))
        return "; ".join(reason for reason in reasons if reason)

    def _unserved(self, resource: PluginResource, device: PluginDevice) -> str:
        """Why no MPS control daemon serves a share, "" if one does or none has to."""
        if resource.sharing is not SharingKind.MPS or not device.is_replica:
            return ""
        if resource.name in self._silent:
            return f"the MPS control daemon of {resource.name} serves no longer"
        shares = self.host.mps_shares.get(resource.name)
        if shares is None or shares.get(device.unit.uuid) == self._replicas[resource.name][device.unit.uuid]:
            return ""
        return f"the MPS control daemon of {resource.name} does not have the limits of these shares yet"

    def _resource(self, name: str) -> PluginResource:
        resource = self.plan.resource(name)
        if resource is None or self.settings is None:
            raise AllocationError(
                f'invalid allocation request for "{name}": the resource is being withdrawn',
                "a resource that this node still offers",
                "delete the pod: its replacement is scheduled anew",
            )
        return resource


def _without_imex(resources: ResourcePlan, missing: Sequence[int], *, required: bool) -> ResourcePlan:
    """Warn about missing channels; with ``required``, offer nothing until they exist."""
    names = ", ".join(f"channel{channel}" for channel in missing)
    advice = Advice(
        subject="",
        what="nothing is offered" if required else f"containers get no IMEX {names}",
        why=f"error querying IMEX channels: requested IMEX channel {names} does not exist",
        severity=Severity.ERROR if required else Severity.WARNING,
        remedy="load the nvidia-caps-imex-channels device (NVreg_CreateImexChannel0=1), or set imex.required: false",
        reason="ImexMissing",
    )
    return replace(
        resources, resources=() if required else resources.resources, advice=(*resources.advice, advice)
    )  # fmt: skip


def _without_mps(
    resources: ResourcePlan, settings: PluginSettings, host: HostDevices, served: frozenset[str]
) -> ResourcePlan:
    """Leave out MPS shares without a listening daemon: every CUDA program in them would fail.

    Those that had one (``served``) stay in the list, and are unhealthy until it is back.
    """
    silent = [
        resource
        for resource in resources.resources
        if resource.sharing is SharingKind.MPS and resource.name not in host.mps_daemons
    ]
    advice = [
        Advice(
            subject=resource.name,
            what=f"{resource.name} is {'unhealthy' if resource.name in served else 'not offered'}",
            why="sharing.mps is configured, and no MPS control daemon listens for it",
            evidence=(f"{mps_control(settings.mps_root, resource.name)} takes no connection",),
            severity=Severity.ERROR,
            remedy="look at the agent's role mps on this node, or at the DaemonSet that runs the daemon; without one,"
            " share by sharing.timeSlicing",
            reason="MpsDaemonMissing",
        )
        for resource in silent
    ]
    kept = tuple(resource for resource in resources.resources if resource not in silent or resource.name in served)
    return replace(resources, resources=kept, advice=(*resources.advice, *advice))


def refused(config: ConfigText, problem: UserError, *, kept: bool) -> Advice:
    """The advice on a configuration that can't be used."""
    advice = Advice.from_error(problem, subject=config.name, reason=REFUSED, severity=Severity.ERROR)
    tail = "the last good configuration stays in force" if kept else "nothing is offered until it is corrected"
    return replace(advice, evidence=(tail,))
