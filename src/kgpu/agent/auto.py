"""The agent under the operator: the operator's document and the Node's labels decide which roles run.

Promises: every role starts, stops and restarts independently, within a second of the label's change; a changed
environment restarts only the role that it is for; nothing known is lost while the API server is unavailable; the
hardware child runs only while a role needs it. Read ``_apply`` first: it compares what is wanted with what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu import __version__
from kgpu.agent import status
from kgpu.agent.config_map_files import ConfigMapFiles
from kgpu.agent.driver_place import DriverPlace, find_driver
from kgpu.agent.host import HandOver, Host, OwnWork, Role, check_agreement
from kgpu.agent.host_files import HostFiles
from kgpu.agent.leaving import leave
from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.ordered import OrderedGpus
from kgpu.agent.orders import OPERATION, Orders
from kgpu.agent.process import POLICY, AgentProcess, follow
from kgpu.agent.remembered_config import CONFIG_MEMORY, PATIENCE, DefaultConfig, FollowedConfig, RememberedConfig
from kgpu.agent.report import AnnotationWriter, agent_report, role_report
from kgpu.agent.role_decisions import (
    DISABLED,
    LEAVING,
    LEAVING_NODE,
    RoleDecision,
    belongs,
    leaves,
    wanted_roles,
    why_stopped,
)
from kgpu.agent.role_options import role_options
from kgpu.agent.roles import ROLES
from kgpu.agent.shared_reader import SharedReader
from kgpu.agent.slot import SharedReaders, Slot
from kgpu.agent.switched_config import SwitchedConfig
from kgpu.base.advice import Severity
from kgpu.base.errors import ConfigError, HostError, KubeError, UserError
from kgpu.base.http import StatusServer, local_only
from kgpu.base.service import Complaint
from kgpu.base.supervise import RoleHandle, RoleState, RoleStatus, Supervisor, stop_on_signals
from kgpu.base.waits import first_of
from kgpu.formats.agent_config import AgentConfig, ConfigRef, RoleConfig, of_node, vendor_of_node
from kgpu.formats.agent_report import AgentReport, RoleReport
from kgpu.formats.config_choice import Fallback
from kgpu.formats.names import AGENT_NODE_LABEL, AGENT_NODE_LEAVING, NVIDIA
from kgpu.hw.port import Reader
from kgpu.kube.port import KubeApi

if TYPE_CHECKING:
    from kgpu.agent.order_follower import OrderFollower

log = logging.getLogger(__name__)

LOOK: Final = 2.0  # seconds between looks at where the driver is
RETRY: Final = 2.0  # seconds until a clean-up that failed is tried again
HAND_OVER: Final = 30.0  # seconds between checks whether the Node's labels come from the new sink
LAST_LOOK: Final = 1.0  # seconds for a last check whether the role was switched off
LAST_WORDS: Final = 5.0  # seconds for the final report on the Node; if that fails, the old report stays


class AutoAgent(AgentProcess):
    """One agent. ``run`` returns when ``stop`` is set. ``open_reader`` and ``api`` stand in for the real ones."""

    def __init__(
        self,
        options: AgentOptions,
        roles: tuple[Role, ...] = ROLES,
        *,
        open_reader: Callable[[Path | None], Awaitable[Reader]] | None = None,
        api: KubeApi | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(options, api=api)
        self._rows = {role.name: role for role in roles}
        # The role of a process that runs beside others with the other roles, about which it reports nothing; else "".
        self._part = next(iter(self._rows), "") if options.roles and roles != ROLES else ""
        self._writer: AnnotationWriter | None = None
        self._open_reader = open_reader or self._open_vendors
        self._vendor = NVIDIA  # whose accelerators the operator says that the node has
        self._patience = patience
        self._hardware = SharedReaders(self._reader)
        self._ordered = OrderedGpus()
        self._own_work = OwnWork()
        self._follower: OrderFollower | None = None  # from the first order for an operation on GPUs on
        self._follows = asyncio.Event()
        self._files = HostFiles(options.state_dir)
        self._config = SwitchedConfig()
        self._ref = ConfigRef()
        self._config_files = ConfigMapFiles(self.api, namespace=options.namespace, folder=options.state_dir)
        self._slots = {role.name: Slot(role, self._host, self.decide) for role in roles}
        self._keepers = Supervisor(policy=POLICY, on_advice=self.decide)
        self._problems: dict[str, ConfigError] = {}
        self._complaints = {
            role.name: Complaint(self.decide, subject=role.name, reason="ConfigRefused", severity=Severity.ERROR)
            for role in roles
        }
        self._tidy = asyncio.Event()
        self._withdrawn: set[str] = set()
        # Roles whose traces are being removed: a role that started now would lose what it writes.
        self._held: set[str] = set()
        self._sink_left: LabelsSink | None = None
        self._hand_over_at: dict[LabelsSink, float] = {}  # not before, by the monotonic clock
        self.orders: Orders | None = None
        self.wanted: dict[str, RoleDecision] = {}
        self.place: DriverPlace | None = None
        self.left = False
        # It has left this node while kgpu stays on others: it stays away until it ends or the label is "true" again.
        self._gone = False

    async def run(self) -> tuple[str, ...]:
        """Run until ``stop``. Returns the names of what did not end. Raises UserError if it can't start."""
        options = self.options
        server: StatusServer | None = None
        try:
            server = await self.serve_pages(self._routes())
            self.orders = orders = Orders(
                self.api(), node=options.node_name, namespace=options.namespace, state_dir=options.state_dir,
                decide=self.decide, patience=self._patience, whole=not self._part,
            )  # fmt: skip
            writer = AnnotationWriter(self.api, orders, node=options.node_name, make=self.report, part=self._part)
            self._writer = writer
            for slot in self._slots.values():
                self._keepers.start(slot.role.name, _keeper(slot))
            services = {
                "orders": self._follow_orders,
                "roles": self._steer,
                "config": self._follow_config,
                "config files": self._config_files.run,
                "clean-up": self._clean_up,
                "operation": self._follow_operation,
                "report": writer.run,
                "events": self.write_events,
            }
            for name, service in services.items():
                self.services.start(name, service)
            log.info("kgpu %s on node %s: waiting for the operator's orders", __version__, options.node_name)
            await self.stop.wait()
            log.info("stopping")
        finally:
            stuck = await self._shut_down(server)
        log.info("stopped")
        return stuck

    def report(self) -> AgentReport | None:
        """The report for the Node; None while nothing is known."""
        if self.orders is None or self.orders.config is None or not self.wanted:
            return None
        config = self.orders.config
        reader = self._hardware.latest
        roles = {
            name: self._role_report(name, decision) for name, decision in self.wanted.items() if name in config.roles
        }
        return agent_report(
            roles,
            generation=config.generation,
            inventory=reader.last_inventory if reader is not None and reader.last_error is None else None,
            place=self.place,
        )

    def statuses(self) -> tuple[RoleStatus, ...]:
        """The status of every role; a role that does not run has the reason."""
        return tuple(self._status(name, decision) for name, decision in self.wanted.items())

    # What is wanted and what is there

    async def _steer(self, handle: RoleHandle) -> None:
        """A service: bring the slots in line with the orders, and the driver root with where the driver is."""
        assert self.orders is not None
        orders = self.orders
        while True:
            revision = orders.revision
            if orders.config is None:
                handle.waiting("the operator's configuration is not known yet")
            else:
                self._apply(orders.config, orders)
                handle.running()
            await first_of(orders.changed(revision), self._config_files.changed(), asyncio.sleep(LOOK))

    def _apply(self, config: AgentConfig, orders: Orders) -> None:
        labels = self._marked(orders)
        decisions = self._lingering(wanted_roles(config, labels, self._rows))
        self.wanted = {name: decision for name, decision in decisions.items() if not self._part or name in self._rows}
        leaving = self._leaves(config, orders)
        self._vendor, config = vendor_of_node(labels), of_node(config, labels)
        if not leaving or (config.leaving and self._gone):  # all of kgpu goes, including the features
            self.left = self._gone = False
        if not leaving:
            orders.keep()
            if any(role.configured for role in self._rows.values()):
                self._follow(config.device_plugin_config)
        if any(decision.goes_on and self._rows[name].hardware for name, decision in self.wanted.items()):
            self._settle_place(find_driver(config, self.options.host_root, self._vendor))
        else:
            self.place = None
        place = self.place or find_driver(config, self.options.host_root, self._vendor)
        self._heed(orders, place)
        running = [name for name, decision in self.wanted.items() if decision.goes_on and name in config.roles]
        files = {name: config.roles[name].files for name in running if config.roles[name].files}
        self._config_files.want({} if self._part else files)  # a pod of its own has them mounted
        for name, slot in self._slots.items():
            if self.wanted[name].goes_on and name not in self._held:
                self._withdrawn.discard(name)
                self._start(slot, config, place)
            else:
                self._accept(name)
                slot.want(None)
        if (leaving and not self.left) or self._to_withdraw() or self._stale_sink() is not None:
            self._tidy.set()

    def _lingering(self, decisions: dict[str, RoleDecision]) -> dict[str, RoleDecision]:
        """The decisions, with why a role goes on that is to stop but that pods still need."""
        found = dict(decisions)
        for name, slot in self._slots.items():
            decision, lingers = decisions[name], slot.role.lingers
            if lingers is None or decision.run or decision in (LEAVING, LEAVING_NODE):
                continue
            if why := lingers(slot.running or self.options):
                found[name] = dataclasses.replace(decision, lingers=why)
        return found

    def _heed(self, orders: Orders, place: DriverPlace) -> None:
        """Obey an order for an operation on GPUs, before any role is started."""
        reads = any(role.hardware for role in self._rows.values())
        if self._follower is None and reads and not orders.reports.keys().isdisjoint(OPERATION):
            from kgpu.agent.operation import make_follower

            self._follower = make_follower(
                self.options, orders, self._ordered, self._hardware, api=self.api,
                place=lambda: self.place or place, slots=self._slots.values(), alone=not self._part,
            )  # fmt: skip
            self._follows.set()
        if self._follower is not None:
            self._follower.heed()

    def _start(self, slot: Slot, config: AgentConfig, place: DriverPlace) -> None:
        name = slot.role.name
        files = self._config_files.env(name)
        if files is None:  # what it reads is not there yet
            return
        try:
            told = config.roles.get(name) or RoleConfig()
            options = role_options(self.options, slot.role, told, config, place, files=files)
            check_agreement(slot.role, slot.running, options, self._config.current())
            slot.want(options)
            self._accept(name)
        except ConfigError as error:
            self._problems[name] = error
            self._complaints[name].of(error)

    def _accept(self, name: str) -> None:
        self._problems.pop(name, None)
        self._complaints[name].over()

    def _settle_place(self, place: DriverPlace) -> None:
        if place != self.place:
            log.info("driver root %s (%s)%s", place.host, place.source, "" if place.found else ": no driver there yet")
        self.place = place

    def _follow(self, ref: ConfigRef) -> None:
        """Follow the device plugin's configuration in the place that the orders name."""
        if ref != self._ref:
            self._ref = ref
            self._config.switch(self._config_source(ref))

    def _config_source(self, ref: ConfigRef) -> FollowedConfig:
        if not ref.name or self.orders is None:
            return DefaultConfig()
        from kgpu.kube.node_config import NodeConfigSource

        options = self.options
        source = NodeConfigSource(
            self.api(),
            node=options.node_name,
            namespace=options.namespace,
            config_map=ref.name,
            default=ref.default,
            fallbacks=(Fallback.EMPTY,),
            followed=self.orders.node,
        )
        return RememberedConfig(source, options.state_dir / CONFIG_MEMORY)

    # What the slots need

    @contextlib.asynccontextmanager
    async def _host(self, role: Role, options: AgentOptions) -> AsyncIterator[Host]:
        hardware = self._hardware.reader(options) if role.hardware else self._hardware.own(options)
        async with hardware as reader:
            yield Host(
                options=options,
                reader=reader,
                config=self._config,
                decide=self.decide,
                api=self.api,
                files=self._files,
                pages=self.pages,
                offered=self.offered,
                stopped=self._why_stopped,
                off=self._why_off,
                lost=self.orders.lost if self.orders is not None else None,
                ordered=self._ordered,
                own_work=self._own_work,
            )

    def _reader(self, options: AgentOptions) -> SharedReader:
        return SharedReader(lambda: self._open_reader(options.root))

    async def _open_vendors(self, root: Path | None) -> Reader:
        from kgpu.hw.open import open_reader

        return open_reader(driver_root=root, vendor=self._vendor)

    # Services

    async def _follow_orders(self, handle: RoleHandle) -> None:
        assert self.orders is not None
        await follow(self.orders, handle)

    async def _follow_operation(self, handle: RoleHandle) -> None:
        handle.running()
        await self._follows.wait()
        assert self._follower is not None
        await self._follower.run(handle)

    async def _follow_config(self, handle: RoleHandle) -> None:
        await follow(self._config, handle)

    async def _clean_up(self, handle: RoleHandle) -> None:
        """A service: remove what disabled roles have published, and everything when kgpu leaves."""
        handle.running()
        complaint = Complaint(self.decide, subject="clean-up", reason="CleanUpFailed")
        while True:
            await self._tidy.wait()
            self._tidy.clear()
            try:
                await self._clean_up_once()
                complaint.over()
                handle.running()
            except (KubeError, HostError) as error:
                handle.waiting(error)
                complaint.of(error)
                self._tidy.set()
                await asyncio.sleep(RETRY)

    async def _clean_up_once(self) -> None:
        orders = self.orders
        if orders is None or orders.config is None:
            return
        for name in self._to_withdraw():
            async with self._ended(name):
                withdraw = self._rows[name].withdraw
                if withdraw is not None and self.wanted[name] is DISABLED:
                    await withdraw(self.api(), self.options)
                    self._withdrawn.add(name)
        stale = self._stale_sink()
        if stale is not None:
            hand_over, sink = stale
            if await hand_over(sink, self.api(), self.options):
                self._sink_left = sink
            else:
                self._hand_over_at[sink] = time.monotonic() + HAND_OVER
        if self._leaves(orders.config, orders) and not self.left:
            # The order may have come while the steps above waited: roles of the order before it have to end, too.
            self._apply(orders.config, orders)
            going = [name for name, decision in self.wanted.items() if name in self._slots and not decision.run]
            alone = not orders.config.leaving
            async with self._ended(*going):
                if not self._leaves(orders.config, orders):  # a policy or a GPU has come while the roles ended
                    return
                async with orders.forgotten():
                    await leave(self.api(), self.options, [self._rows[name] for name in going])
                self.left = self._leaves(orders.config, orders)
                self._gone = self.left and alone
                log.info("everything that kgpu has put on this node is gone")

    def _leaves(self, config: AgentConfig, orders: Orders) -> bool:
        return leaves(config, self._marked(orders))

    def _marked(self, orders: Orders) -> Mapping[str, str]:
        """The Node's labels; after leaving this node alone, always with the label that says so."""
        stays = not self._gone or belongs(orders.labels)
        return orders.labels if stays else {**orders.labels, AGENT_NODE_LABEL: AGENT_NODE_LEAVING}

    @contextlib.asynccontextmanager
    async def _ended(self, *names: str) -> AsyncIterator[None]:
        """Within the block these roles are stopped and do not start, whatever the orders say."""
        self._held.update(names)
        try:
            for name in names:
                self._slots[name].want(None)
            for name in names:
                await self._slots[name].settled()
            yield
        finally:
            self._held.difference_update(names)

    def _to_withdraw(self) -> list[str]:
        return [
            name
            for name, role in self._rows.items()
            if role.withdraw is not None and self.wanted[name] is DISABLED and name not in self._withdrawn
        ]

    def _stale_sink(self) -> tuple[HandOver, LabelsSink] | None:
        """The sink that may still hold labels from before the sink was changed, and what tidies it; None if it is tidy
        or to be checked later.
        """
        slot = next((slot for slot in self._slots.values() if slot.role.hand_over is not None), None)
        if slot is None or slot.running is None or slot.status is None or not slot.status.ready:
            return None
        stale = LabelsSink.NODE if slot.running.sink is LabelsSink.NODE_FEATURE else LabelsSink.NODE_FEATURE
        wait = time.monotonic() < self._hand_over_at.get(stale, 0.0)
        tidy = stale is self._sink_left or wait
        return None if tidy or slot.role.hand_over is None else (slot.role.hand_over, stale)

    # What is said

    def _why_off(self, name: str) -> str:
        """Why the orders or the Node's labels keep a role from running here; "" if they do not, or are not known."""
        orders = self.orders
        return why_stopped(orders.config, self._marked(orders), name) if orders is not None and orders.config else ""

    def _why_stopped(self, name: str) -> str:
        """Why a role does not run on this node, in whichever process; "" if it does or nothing is known."""
        problem, slot = self._problems.get(name), self._slots.get(name)
        if why := self._why_off(name):
            return why
        role_status = slot.status if slot is not None else None
        if problem is not None and role_status is None:
            return problem.one_line()
        return role_status.line if role_status is not None and role_status.state is RoleState.FAILED else ""

    def _role_report(self, name: str, wanted: RoleDecision) -> RoleReport:
        slot, problem = self._slots.get(name), self._problems.get(name)
        released = self._ordered.released if name in self._rows and self._rows[name].hardware else ""
        return role_report(
            wanted, slot.status if slot else None, problem, left=self.left and not wanted.run, released=released
        )

    def _status(self, name: str, wanted: RoleDecision) -> RoleStatus:
        slot = self._slots.get(name)
        role_status = slot.status if slot is not None else None
        if role_status is not None and wanted.run:
            return role_status
        report = self._role_report(name, wanted)
        state = RoleState(report.state) if report.state in list(RoleState) else RoleState.STOPPED
        return RoleStatus(
            name=name, state=state, reason=report.reason, remedy=report.remedy, since=self._begin, restarts=0
        )

    def _routes(self) -> dict[str, Any]:
        return {
            "/healthz": status.healthz,
            "/readyz": self._readyz,
            "/statusz": local_only(lambda: status.statusz(self._document())),
        }

    def _readyz(self) -> Any:
        error = None if self.orders is None else self.orders.error
        return status.readyz_auto(
            self.statuses(),
            {name for name, decision in self.wanted.items() if not decision.run},
            known=self.orders is not None and self.orders.config is not None,
            problem=error.one_line() if error is not None else "",
        )

    def _document(self) -> dict[str, Any]:
        config = self.orders.config if self.orders is not None else None
        reader = self._hardware.latest
        place = self.place
        return self.document(
            self.statuses(),
            generation=config.generation if config is not None else None,
            driver_root={"seen": str(place.seen), "host": place.host, "source": place.source} if place else None,
            config=status.config_row(self._config.current()),
            hardware=status.hardware(reader.last_inventory, reader.last_error) if reader else {"state": "unused"},
        )

    async def _finish(self) -> None:
        """Wait a limited time for a clean-up that has been ordered: whoever orders it ends this process next."""
        if self._part and self.orders is not None and self.orders.config is not None:
            # A process for one role is ended at the moment its role is switched off.
            await self.orders.look_again(LAST_LOOK)
            self._apply(self.orders.config, self.orders)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(role.finish for role in self._rows.values())):
                while self._cleans_up():  # noqa: ASYNC110 - a service does it
                    await asyncio.sleep(0.02)

    def _cleans_up(self) -> bool:
        config = self.orders.config if self.orders is not None else None
        if config is None or not self.wanted:
            return False
        leaving = self.orders is not None and self._leaves(config, self.orders)
        return bool(self._to_withdraw()) or (leaving and not self.left)

    async def _shut_down(self, server: StatusServer | None) -> tuple[str, ...]:
        await self._finish()
        last = self.report()
        stuck = [*await self._keepers.stop(self.options.shutdown_seconds + 1.0), *await self.services.stop(1.0)]
        stuck += [name for name, slot in self._slots.items() if slot.stuck and name not in stuck]
        if last is not None and self._writer is not None:
            with contextlib.suppress(TimeoutError, UserError):
                async with asyncio.timeout(LAST_WORDS):
                    await (self._writer.withdraw() if self._gone else self._writer.end(last))
        closing = [("status pages", server.close())] if server is not None else []
        return (*stuck, *await self.close_all(closing))


def _keeper(slot: Slot) -> Any:
    async def function(handle: RoleHandle) -> None:
        handle.running()
        await slot.run()

    return function


async def serve_auto(options: AgentOptions, roles: tuple[Role, ...] = ROLES) -> tuple[str, ...]:
    """Run until SIGTERM or SIGINT. Returns what did not end in time."""
    agent = AutoAgent(options, roles)
    with stop_on_signals(agent.stop, signal.SIGTERM, signal.SIGINT):
        return await agent.run()
