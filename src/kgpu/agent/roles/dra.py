"""The role ``dra``: publishes this node's accelerators and slices as devices, and prepares the claims of its pods.

It is the DRA driver of the vendor whose driver the node has.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.agent.host import DEVICE_PLUGIN, Closing, Host, ProvenGpus, Role, behind_gate, driver_root, verdicts
from kgpu.agent.options import AgentOptions
from kgpu.base.errors import ConfigError
from kgpu.base.supervise import RoleHandle
from kgpu.hw.partitioning import PartitionError

if TYPE_CHECKING:
    from kgpu.agent.claim_edits import ClaimEdits
    from kgpu.agent.claim_variables import ClaimVariables
    from kgpu.agent.counted_gpus import CountedGpus
    from kgpu.base.advice import Advice
    from kgpu.dra.claim_specs import ClaimSpecs
    from kgpu.dra.drivers import DraDriver
    from kgpu.dra.gates import DraGates
    from kgpu.dra.model import DraDevice, PublishRules
    from kgpu.dra.preparing import Preparations
    from kgpu.dra.publish import SlicePublisher
    from kgpu.dra.sharing import DeviceSharer
    from kgpu.dra.slice_maker import SliceMaker
    from kgpu.hw.port import Inventory
    from kgpu.kubelet.dra_plugin import DraPluginServer

NAME: Final = "dra"


async def _dra(host: Host, handle: RoleHandle) -> None:
    import contextlib

    from kgpu.agent.metrics_page import on_page
    from kgpu.base.service import first_end, running
    from kgpu.dra.api import served_api
    from kgpu.dra.drivers import unused_gates
    from kgpu.dra.gates import read_gates
    from kgpu.dra.health import VALID_S
    from kgpu.dra.metrics import DraMetrics
    from kgpu.dra.node_claims import NodeClaims
    from kgpu.dra.publish import SlicePublisher, SlicesContext
    from kgpu.dra.stale import StaleClaims
    from kgpu.formats.settings import resolve, without_effect
    from kgpu.kubelet.dra_health import HealthStream
    from kgpu.kubelet.dra_plugin import DraPluginServer

    options = host.options
    _check(options)
    settings = resolve(_flags(), flags=options.overrides_of(NAME), env=options.env)
    for advice in without_effect(_flags(), settings):
        host.decide(advice)
    values = settings.values
    gates = read_gates(values["feature_gates"])
    server_api = await served_api(host.api())  # type: ignore[arg-type]
    node = _NodeDevices(host, gates, values)
    view = host.reader.view()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(contextlib.aclosing(Closing(view)))
        preparations = await node.open(stack)
        proven = await stack.enter_async_context(behind_gate(host, view))
        # A slice that is made for a claim is used before anybody could prove it.
        reader = view if gates.dynamic_mig else proven.reader
        health = HealthStream(VALID_S)
        publisher = SlicePublisher(SlicesContext(
            api=host.api(), server=server_api, node=options.node_name, reader=reader, rules=node.rules,
            report=host.decide, verdicts=verdicts(options), on_state=handle.report,
            health=health.update,
        ))  # fmt: skip
        driver = node.driver
        for name in unused_gates(driver, gates):
            host.decide(_unused(name, driver.name))
        metrics = DraMetrics(driver=driver.name, node=options.node_name, types=driver.types)
        stack.enter_context(on_page(host, NAME, lambda: metrics.text(preparations.records.all.values())))
        claims = NodeClaims(
            api=host.api(), driver=driver.name, pool=options.node_name, preparations=preparations,
            resource=server_api.claims, metrics=metrics,
        )  # fmt: skip
        stale = StaleClaims(api=host.api(), resource=server_api.claims, preparations=preparations, report=host.decide)
        server = DraPluginServer(
            driver.name, claims, plugins=Path(values["plugins"]), registrar=Path(values["registrar"]),
            health=health,
        )  # fmt: skip
        stack.push_async_callback(server.close)
        await server.start()
        slices = _published(publisher, server, node.counted, proven, handle)
        counted = node.counted.run(publisher.changed)
        services = {"dra_sockets": server.run(), "dra_ledger": counted, "dra_stale": stale.run()}
        async with running(dra_slices=slices, **services) as tasks:
            await first_end(tasks)


async def _published(
    publisher: SlicePublisher, server: DraPluginServer, counted: CountedGpus, proven: ProvenGpus, handle: RoleHandle
) -> None:
    """Publish once a GPU is proven, and the kubelet has the driver: a pod that comes before waits a minute until it is
    tried again.
    """
    handle.waiting("the kubelet has not taken the driver yet")
    await server.registered.wait()
    handle.waiting("the kubelet does not say yet which GPUs pods have by counted resources")
    await counted.known.wait()
    await proven.opened(handle.waiting)
    await publisher.run()


def _check(options: AgentOptions) -> None:
    if not (options.has_api_server and options.node_name):
        raise ConfigError(
            "the DRA driver has no Node to publish devices for", "an API server, and this node's name", "set NODE_NAME"
        )
    if DEVICE_PLUGIN in options.roles:
        raise ConfigError(
            f"the roles {DEVICE_PLUGIN} and {NAME} would both give out this node's GPUs", "one of them on a node",
            f"leave one of them out of --roles: {DEVICE_PLUGIN} for counted resources, {NAME} for claims",
        )  # fmt: skip


class _NodeDevices:
    """What the driver of this node is asked, and what is made of it."""

    def __init__(self, host: Host, gates: DraGates, values: Mapping[str, Any]) -> None:
        from kgpu.dra.xids import read_xids

        self._host = host
        self._gates = gates
        self._values = values
        self._ignored = read_xids(values["ignored_xids"])
        self._seen: Inventory | None = None
        self.counted = _counted(host)
        self._offered: tuple[Inventory, PublishRules, Mapping[str, DraDevice]] | None = None
        self._roots: tuple[Inventory, Mapping[str, str]] | None = None
        self._preparations: Preparations | None = None

    @property
    def driver(self) -> DraDriver:
        """The driver of the vendor whose hardware was read. Raises ConfigError."""
        from kgpu.dra.drivers import driver_of

        return driver_of(self._latest().vendor)

    async def open(self, stack: Any) -> Preparations:
        """What prepares claims, with what an earlier process has left. Raises HwError, HostError, ConfigError."""
        from kgpu.agent.claimed_gpus import claims_folder
        from kgpu.base.boot import boot_id, uptime
        from kgpu.dra.preparing import Preparations
        from kgpu.dra.records import ClaimRecords

        host = self._host
        await self.read()
        folder = claims_folder(Path(self._values["plugins"]), self.driver.name)
        records = ClaimRecords(folder, boot=boot_id(), report=host.decide, began=time.time() - uptime())
        slices, sharer = self._dividing(stack) if self.driver.divides else (None, None)
        self._preparations = Preparations(
            records=records, specs=self._specs(), slices=slices, sharer=sharer, known=self.known, read=self.read,
            offered=self.offered, gates=self._gates.on, news=host.reader.changed, taken=lambda: self.counted.taken,
            off=self.counted.off,
        )  # fmt: skip
        await self._preparations.start()
        return self._preparations

    def _specs(self) -> ClaimSpecs:
        """What writes CDI specs, with the driver's files where containers need these."""
        from kgpu.dra.claim_specs import ClaimSpecs
        from kgpu.hw.vendor import vendor_of

        root = driver_root(self._host.options)
        edits: ClaimEdits | ClaimVariables
        if vendor_of(self._latest().vendor).nodes_suffice:
            from kgpu.agent.claim_variables import ClaimVariables

            edits = ClaimVariables(root, self._latest)
        else:
            from kgpu.agent.claim_edits import ClaimEdits

            edits = ClaimEdits(root, self._latest)
        return ClaimSpecs(Path(self._values["cdi_root"]), self.driver.cdi, edits.node, edits.common)

    def _dividing(self, stack: Any) -> tuple[SliceMaker, DeviceSharer]:
        """What makes slices for claims and sets how devices are shared."""
        from kgpu.agent.claim_sharing import driver_sharer
        from kgpu.dra.slice_maker import SliceMaker
        from kgpu.hw.open import open_partitioner

        options = self._host.options
        partitioner = open_partitioner(driver_root=options.root, reset=_no_reset)
        stack.push_async_callback(partitioner.close)
        folder = Path(self._values["plugins"]) / self.driver.name
        sharer, daemons = driver_sharer(str(options.root or "/"), folder, self._host.decide)
        stack.push_async_callback(daemons.close)
        return SliceMaker(partitioner), sharer

    async def read(self) -> Inventory:
        """The GPUs as they are now."""
        self._seen = await self._host.reader.fresh_inventory()
        return self._seen

    async def known(self) -> Inventory:
        """The GPUs as they were read last, unless something has happened since."""
        self._seen = await self._host.reader.known_inventory()
        return self._seen

    async def offered(self) -> Mapping[str, DraDevice]:
        """The devices by name."""
        from kgpu.dra.devices import node_devices

        inventory = await self.known()
        rules = dataclasses.replace(await self.rules(inventory), taken={})  # whose it is, is told of each device
        if self._offered is None or self._offered[0] is not inventory or self._offered[1] != rules:
            found = node_devices(inventory, rules).devices
            self._offered = (inventory, rules, {device.name: device for device in found})
        return self._offered[2]

    async def rules(self, inventory: Inventory) -> PublishRules:
        """How an inventory is published now."""
        from kgpu.dra.model import PublishRules

        return PublishRules(
            dynamic=self._gates.dynamic_mig, monitored=self._gates.health_check, ignored_xids=self._ignored,
            made=self._preparations.made if self._preparations is not None else frozenset(),
            pcie_roots=await self._pcie_roots(inventory), taken=self.counted.not_to_give(inventory),
        )  # fmt: skip

    async def _pcie_roots(self, inventory: Inventory) -> Mapping[str, str]:
        """Those of an inventory, found once: they change with the machine alone."""
        from kgpu.base.threads import beside
        from kgpu.dra.host_facts import read_pcie_roots

        if self._roots is None or self._roots[0] is not inventory:
            root = self._host.options.root or self._host.options.host_root
            self._roots = (inventory, await beside(read_pcie_roots, root, inventory))
        return self._roots[1]

    def _latest(self) -> Inventory:
        assert self._seen is not None, "nothing is prepared before the GPUs were read"
        return self._seen


def _counted(host: Host) -> CountedGpus:
    from kgpu.agent.counted_gpus import CountedGpus
    from kgpu.kubelet.pod_resources import PodResources

    options = host.options
    held = PodResources(options.pod_resources_socket, in_pod=options.in_pod)
    return CountedGpus(held, host.reader.inventory, ordered=host.ordered, off=partial(host.off, NAME))


def _lingers(options: AgentOptions) -> str:
    """Claims that are prepared: only this role can take that back, and their pods can't end before."""
    from kgpu.agent.claimed_gpus import claims_folders
    from kgpu.formats.settings import resolve

    values = resolve(_flags(), flags=options.overrides_of(NAME), env=options.env).values
    count = sum(1 for folder in claims_folders(Path(values["plugins"])) for _ in folder.glob("*.json"))
    return f"pods still have {count} claim{'s' if count > 1 else ''}" if count else ""


def _unused(gate: str, driver: str) -> Advice:
    from kgpu.base.advice import Advice

    return Advice(
        subject=gate, what=f"the feature gate {gate} changes nothing with the driver {driver}",
        why="it is about another vendor's devices", reason="GateWithoutEffect",
        remedy="nothing, if nodes of that vendor are to have it",
    )  # fmt: skip


async def _no_reset(gpu: str) -> None:
    raise PartitionError(f"GPU {gpu} is to be reset for a claim", "slices that need no reset", "report this")


def _flags() -> tuple[Any, ...]:
    from kgpu.formats.dra_flags import ROLE_FLAGS

    return ROLE_FLAGS


ROLE: Final = Role(
    NAME,
    _dra,
    aliases=("gpu-kubelet-plugin",),
    flags=_flags,
    orders=("validations_dir",),
    lingers=_lingers,
)
