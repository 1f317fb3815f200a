"""What an AMD node's page has besides: the families of AMD's exporter, by its configuration file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kgpu.base.advice import Advice, AdviceSink
from kgpu.exporter.amd.families import RocmFamilies
from kgpu.exporter.amd.follow import RocmConfigFile, port_too_late
from kgpu.exporter.model import PlanInput, VendorFamilies
from kgpu.exporter.self_metrics import ConfigState
from kgpu.exporter.settings import ExporterSettings
from kgpu.hw.verdicts import GpuVerdict


class RocmPage:
    """Implements ``kgpu.exporter.ticks.VendorPage``."""

    def __init__(self, path: str, report: AdviceSink) -> None:
        self._file = RocmConfigFile(path, report)
        self._path = path
        self._families = RocmFamilies()

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
        return self._families.plan(look, settings, self._file.config, healthy)

    def followed(self) -> tuple[ConfigState, ...]:
        """The state of the configuration file, for metrics."""
        state = self._file.followed()
        return (state,) if state is not None else ()

    async def run(self) -> None:
        """Follow the configuration until cancelled."""
        await self._file.run()
