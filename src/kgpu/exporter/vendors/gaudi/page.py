"""What a Gaudi node's page has besides: the families of Gaudi's metric exporter, with its labels.

The labels are those of the exporter whose source Intel has published; its vendor's documents name none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.exporter.labels import Pairs
from kgpu.exporter.model import PlanInput, SeriesSample, VendorFamilies
from kgpu.exporter.self_metrics import ConfigState
from kgpu.exporter.settings import ExporterSettings
from kgpu.exporter.vendors.families import FamilyTable, Labelled
from kgpu.exporter.vendors.gaudi.rows import CONFIG, MADE, ROWS
from kgpu.hw.verdicts import GpuVerdict

PORT: Final = 41611
"""Where the replaced exporter listens."""
# A card's uuid is its serial, where libhlml says that, and so is ``device`` there. ``fit`` and ``spi`` are versions of
# the boot loader and of the card's own kernel.
LABELS: Final[tuple[tuple[str, Callable[[Labelled], str]], ...]] = (
    ("Serial", lambda seen: seen.gpu.uuid),
    ("UUID", lambda seen: seen.said.get("board_uuid", "")),
    ("device", lambda seen: seen.gpu.uuid),
    ("id", lambda seen: str(seen.gpu.minor)),
    ("fit", lambda seen: seen.said.get("boot_version", "")),
    ("spi", lambda seen: seen.said.get("kernel_version", "")),
    ("driver", lambda seen: seen.driver),
    ("pod_namespace", lambda seen: seen.holder.namespace if seen.holder else ""),
    ("pod_name", lambda seen: seen.holder.pod if seen.holder else ""),
)


def labels(seen: Labelled) -> Pairs:
    """All labels of a card's series."""
    return tuple((name, value(seen)) for name, value in LABELS)


class GaudiPage:
    """Implements ``kgpu.exporter.ticks.VendorPage``. There is no configuration but the port."""

    def __init__(self, *, own_port: bool) -> None:
        self.port = PORT if own_port else None
        self._table = FamilyTable(ROWS)

    def too_late(self) -> Advice:
        """That another port is listened on already."""
        return Advice(
            subject="exporter", what=f"the page is not on port {PORT}",
            why="the cards were found after it had begun to listen", severity=Severity.WARNING,
            remedy=f"restart the exporter, or give --address :{PORT}", reason="GaudiPortLater",
        )  # fmt: skip

    def on_change(self, changed: Callable[[], object]) -> None:
        """Nothing changes."""

    def plan(self, look: PlanInput, settings: ExporterSettings, _verdicts: Iterable[GpuVerdict]) -> VendorFamilies:
        """The families of one tick."""
        parts = self._table.parts(look, settings, labels)
        there = [SeriesSample(text, "1") for part in parts for text in part.texts] if look.answers else []
        return self._table.plan(look, parts, made={CONFIG: (MADE[CONFIG], there)})

    def followed(self) -> tuple[ConfigState, ...]:
        """There is no file."""
        return ()

    async def run(self) -> None:
        """There is nothing to follow."""
