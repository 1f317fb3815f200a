"""What an AMD node's page has besides: the families of AMD's exporter, by its configuration file.

``gpu_id`` counts partitions as GPUs, as ROCm does.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kgpu.base.advice import Advice, AdviceSink
from kgpu.exporter.labels import Texts
from kgpu.exporter.model import PlanInput, SeriesSample, VendorFamilies
from kgpu.exporter.self_metrics import ConfigState
from kgpu.exporter.settings import ExporterSettings
from kgpu.exporter.vendors.amd.follow import RocmConfigFile, port_too_late
from kgpu.exporter.vendors.amd.labels import labels
from kgpu.exporter.vendors.amd.rows import HEALTH, MADE, NODES, ROWS
from kgpu.exporter.vendors.amd.settings import RocmConfig
from kgpu.exporter.vendors.families import FamilyTable, LabelledPart
from kgpu.hw.verdicts import GpuVerdict

if TYPE_CHECKING:
    from kgpu.exporter.vendors.amd.health_service import RocmHealthService


class RocmFamilies:
    """Makes the families by a configuration."""

    def __init__(self) -> None:
        self._table = FamilyTable(ROWS)
        self.parts: tuple[LabelledPart, ...] = ()
        """The GPUs and partitions of the last families."""

    def plan(
        self, look: PlanInput, settings: ExporterSettings, config: RocmConfig, healthy: Mapping[str, bool]
    ) -> VendorFamilies:
        """The families of one tick. ``healthy`` are the health role's verdicts by uuid, empty without that role."""
        parts = self.parts = self._table.parts(look, settings, functools.partial(labels, config=config), by=config)
        made = {
            NODES: (MADE[NODES], _nodes(look, settings, self._table.texts)),
            HEALTH: (MADE[HEALTH], [sample for part in parts for sample in _health(part, healthy)]),
        }
        return self._table.plan(look, parts, made=made, wants=config.wants, prefix=config.prefix)


class RocmPage:
    """Implements ``kgpu.exporter.ticks.VendorPage``."""

    def __init__(self, path: str, report: AdviceSink, health_socket: str = "") -> None:
        self._file = RocmConfigFile(path, report)
        self._path = path
        self._families = RocmFamilies()
        self._health = _health_service(health_socket, report, self._file) if health_socket else None

    @property
    def port(self) -> int | None:
        """Where the configuration wants the page."""
        return self._file.first.port

    def too_late(self) -> Advice:
        """That another port is listened on already."""
        return port_too_late(self._path)

    def on_change(self, changed: Callable[[], object]) -> None:
        """Call this when the families would be others."""
        self._file.changed = changed

    def plan(self, look: PlanInput, settings: ExporterSettings, verdicts: Iterable[GpuVerdict]) -> VendorFamilies:
        """The families of one tick."""
        healthy = {verdict.uuid: verdict.healthy for verdict in verdicts}
        families = self._families.plan(look, settings, self._file.config, healthy)
        if self._health is not None:
            self._health.update(self._families.parts, answers=look.answers, healthy=healthy)
        return families

    def followed(self) -> tuple[ConfigState, ...]:
        """The state of the configuration file, for metrics."""
        state = self._file.followed()
        return (state,) if state is not None else ()

    async def run(self) -> None:
        """Follow the configuration and serve the health service until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._file.run())
            if self._health is not None:
                group.create_task(self._health.run())


def _health_service(path: str, report: AdviceSink, file: RocmConfigFile) -> RocmHealthService:
    from kgpu.exporter.vendors.amd.health_service import RocmHealthService  # with gRPC

    return RocmHealthService(path, report, lambda: file.config)


def _nodes(look: PlanInput, settings: ExporterSettings, texts: Texts) -> list[SeriesSample]:
    if not look.answers:
        return []
    count = sum(len(gpu.partitions) or 1 for gpu in look.inventory.accelerators)
    return [SeriesSample(texts.text((("hostname", settings.style.hostname),)), str(count))]


def _health(part: LabelledPart, healthy: Mapping[str, bool]) -> Iterator[SeriesSample]:
    verdict = healthy.get(part.gpu.uuid)
    if verdict is not None:
        for text in part.texts:
            yield SeriesSample(text, str(int(verdict)))
