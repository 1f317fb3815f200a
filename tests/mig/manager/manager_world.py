"""A MIG manager with its Node, its driver and its operator in the hands of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from kgpu.agent.config_file import FileConfigSource
from kgpu.agent.ordered import OrderedGpus
from kgpu.base.advice import Advice
from kgpu.base.errors import UserError
from kgpu.base.service import first_end, running
from kgpu.formats import mig_request, names
from kgpu.formats.mig_request import MigProgress, MigReport, MigRequest
from kgpu.formats.node_order import ChangeResult, OrderStep, change_order
from kgpu.formats.node_order import encode as encode_order
from kgpu.hw.fake_partitioner import FakePartitioner
from kgpu.hw.partitioning import Partitioner
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, NODES
from kgpu.mig.manager.configs import ConfigLookup
from kgpu.mig.manager.cutting import NodeCutter
from kgpu.mig.manager.memory import FILE_NAME, MemoryFile
from kgpu.mig.manager.run import MigManagerContext, run
from kgpu.mig.manager.slices import LABEL, MigSlices
from kgpu.mig.survey import SurveyedGpu

NODE, NAMESPACE = "gpu-1", "gpu-operator"
FILE = """version: v1
mig-configs:
  sevenths: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  all-disabled: [{devices: all, mig-enabled: false}]
"""


class World:
    """One node. ``families`` are its GPUs."""

    names = LABEL

    def __init__(self, folder: Path, *families: str, operations: bool = True, config: str | None = FILE) -> None:
        self.folder = folder
        self.api = FakeApi()
        self.api.put(NODES, {"metadata": {"name": NODE, "uid": "uid-1"}})
        self.driver = FakePartitioner(*(families or ("a100-40gb",)))
        self.no_driver: UserError | None = None
        self.orders = OrderedGpus()
        self.operations = operations
        self.boot = "boot-1"
        self.held: dict[str, Sequence[str]] = {}
        self.stranded: Sequence[str] | UserError = ()
        self.advice: list[Advice] = []
        self.states: list[tuple[bool, str, str]] = []
        self.vendor = names.NVIDIA
        self.opened = 0
        self.told = 0
        self.wake: Callable[[], None] = lambda: None
        self.config = folder / "config.yaml"
        if config is not None:
            self.config.write_text(config)
        self.source = FileConfigSource(self.config) if config is not None else None

    # What others do

    def put(self, *, labels: dict[str, str | None] | None = None, **annotations: str | None) -> None:
        """Change labels and annotations of the Node; None takes one away."""
        metadata = self.node["metadata"]
        for kind, changes in (("labels", labels or {}), ("annotations", annotations)):
            kept = {**(metadata.get(kind) or {}), **changes}
            metadata[kind] = {key: text for key, text in kept.items() if text is not None}
        self.api.put(NODES, {"metadata": {key: metadata[key] for key in ("name", "uid", "labels", "annotations")}})

    def label(self, value: str | None) -> None:
        """A person sets the label, or removes it."""
        self.put(labels={self.names.key: value})

    async def operator_labels(self, value: str = "all-disabled", default: str = "") -> None:
        """The operator sets it, with the mark of a default that it means."""
        metadata = {"name": NODE, "labels": {names.MIG_CONFIG_LABEL: value}}
        notes = {"annotations": {names.MIG_DEFAULT_ANNOTATION: default}} if default else {}
        await self.api.apply(NODES, {"metadata": metadata | notes}, manager=names.OPERATOR_FIELD_MANAGER)

    def progress(self, phase: str, message: str = "") -> None:
        """The operator says how far the operation for the present request is."""
        assert self.request is not None or self.last is not None
        key = (self.request or self.last).id  # type: ignore[union-attr]
        text = mig_request.encode(mig_request.progress(key=key, operation="mig-1", phase=phase, message=message))
        self.put(**{names.MIG_OPERATION_ANNOTATION: text})

    def order(self, step: OrderStep, act: str = "act-1") -> None:
        """The operator's order for the request stands on the Node, and what follows it for the roles obeys."""
        asked = self.request or self.last
        assert asked is not None
        self.last = asked
        given = change_order(
            act=act, boot=self.boot, step=step, layouts=asked.layouts, released=asked.release
        )  # fmt: skip
        self.put(**{names.OPERATION_ANNOTATION: encode_order(given)})
        released = "released" if given.released or step is OrderStep.RELEASE else ""
        self.orders.set({}, released, given if step is OrderStep.CHANGE else None)

    def order_over(self) -> None:
        """No order stands any more."""
        self.orders.set()
        self.put(**{names.OPERATION_ANNOTATION: None})

    last: MigRequest | None = None

    async def operated(self, act: str = "act-1") -> ChangeResult:
        """The operator makes an operation of the request, and carries it out."""
        self.last = await self.until(lambda: self.request)
        self.progress("Draining")
        self.order(OrderStep.WITHDRAW, act)
        self.progress("Acting")
        self.order(OrderStep.CHANGE, act)
        result = await self.until(lambda: self.orders.answered(act))
        self.order(OrderStep.RESUME, act)
        self.progress("Verifying")
        self.order_over()
        self.progress("Complete" if result.done else "Failed", "" if result.done else result.text)
        return result

    # What is to be seen

    @property
    def node(self) -> dict[str, Any]:
        return self.api._objects[(NODES, "", NODE)].shown()

    @property
    def annotations(self) -> dict[str, str]:
        return self.node["metadata"].get("annotations") or {}

    @property
    def state(self) -> str:
        return (self.node["metadata"].get("labels") or {}).get(self.names.state, "")

    @property
    def request(self) -> MigRequest | None:
        return mig_request.read_request(self.annotations, self.names.request)

    @property
    def report(self) -> MigReport | None:
        return mig_request.read_report(self.annotations, self.names.report)

    @property
    def shown_progress(self) -> MigProgress | None:
        return mig_request.read_progress(self.annotations)

    @property
    def slices(self) -> list[int]:
        """How many compute instances each GPU has."""
        return [sum(len(one.compute) for one in gpu.instances) for gpu in self.driver.state.values()]

    @property
    def config_map(self) -> dict[str, Any] | None:
        stored = self.api._objects.get((CONFIG_MAPS, NAMESPACE, f"{NODE}-mig-config"))
        return stored.shown() if stored is not None else None

    def reasons(self) -> list[str]:
        return [one.reason for one in self.advice]

    async def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := condition()):  # noqa: ASYNC110 - the condition is another object's state
                await asyncio.sleep(0.002)
            return found

    async def said(self, state: str, reason: str = "") -> MigReport:
        """The report of this state and reason, once it stands on the Node."""

        def found() -> MigReport | None:
            report = self.report
            good = report is not None and report.state == state and reason in {"", report.reason}
            return report if good and report and self.state == self.names.state_value(report.state) else None

        report = await self.until(found)
        assert isinstance(report, MigReport)
        return report

    # The manager

    def open(self) -> Partitioner:
        if self.no_driver is not None:
            raise self.no_driver
        self.opened += 1
        return self.driver

    def cutter(self) -> NodeCutter:
        sources = () if self.source is None else (self.source,)
        return NodeCutter(
            kind=MigSlices(open_driver=self.open, lookup=ConfigLookup(given=sources)),
            memory=MemoryFile(self.folder / "state" / FILE_NAME, boot=self.boot),
        )  # fmt: skip

    async def _holders(self, gpus: Sequence[SurveyedGpu]) -> dict[str, Sequence[str]]:
        return {found.uuid: self.held.get(found.uuid, ()) for found in gpus}

    async def _stranded(self) -> Sequence[str]:
        if isinstance(self.stranded, UserError):
            raise self.stranded
        return self.stranded

    async def _vendor(self) -> str:
        return self.vendor

    async def _hear(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        await asyncio.Event().wait()

    def _news(self) -> None:
        self.told += 1

    def context(self, **more: Any) -> MigManagerContext:
        sources = () if self.source is None else (self.source,)
        return MigManagerContext(**{
            "api": lambda: self.api, "node": NODE, "boot": self.boot, "cutter": self.cutter(),
            "sources": sources, "orders": self.orders, "operations": self.operations,
            "namespace": NAMESPACE, "holders": self._holders, "stranded": self._stranded,
            "news": self._news, "vendor": self._vendor,
            "hear": self._hear, "report": self.advice.append,
            "on_state": lambda ready, reason, why="": self.states.append((ready, str(reason), why)), **more,
        })  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self, **more: Any) -> AsyncIterator[None]:
        """The manager runs within the block."""
        follow = {"file": self.source.run()} if self.source is not None else {}

        async def watched(tasks: Sequence[asyncio.Task[None]]) -> None:
            await first_end(tasks)

        async with running(manager=run(self.context(**more)), **follow) as tasks:
            watch = asyncio.create_task(watched(tasks))
            try:
                yield
                if watch.done():
                    watch.result()
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
