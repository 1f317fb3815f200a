"""``GaudiReader``: the hardware port over the files of the driver habanalabs, and libhlml for what they don't tell.

The files tell what is there, its device nodes and its status; the library tells serials, memory, errors and most of
the telemetry. Without the library cards are named by their PCI addresses, and a finding says what is lacking.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kgpu.base.errors import DriverFault, HwError
from kgpu.formats.names import GAUDI
from kgpu.hw.file_reader import CardScan, FileReader
from kgpu.hw.gaudi import facts as judge
from kgpu.hw.gaudi import gather
from kgpu.hw.gaudi.facts import GaudiFacts
from kgpu.hw.gaudi.hlml import LOST, Hlml, HlmlGoneError, values_of
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem, Reading


class GaudiReader(FileReader[CardScan, GaudiFacts]):
    """Implements ``kgpu.hw.port.Reader``."""

    VENDOR = GAUDI

    def __init__(self, *, driver_root: Path, deadline: float = 2.0, poll: float = 1.0) -> None:
        super().__init__(driver_root=driver_root, deadline=deadline, poll=poll)
        self._hlml = Hlml(str(driver_root), deadline)
        self._gone = ""

    def scan(self) -> CardScan:
        """The cards that the driver has. Raises HwError when it is not loaded."""
        try:
            return gather.scan(self.sys)
        except OSError as error:
            raise HwError(
                "the driver habanalabs is not loaded", f"{self.sys}/bus/pci/drivers/habanalabs",
                "load it (modprobe habanalabs, with habanalabs_cn, habanalabs_ib and habanalabs_en), or install it",
                fault=DriverFault.NOT_LOADED,
            ) from error  # fmt: skip

    async def inventory(self) -> Inventory:
        """Enumerate now. Raises HwError when there is no driver, or nothing of it can be read."""
        self._gone = ""
        try:
            inventory = await super().inventory()
        except HwError:
            await self._hlml.close()  # it holds the driver that is going, and nothing of the next
            raise
        return replace(inventory, findings=(*inventory.findings, _gone(self._gone))) if self._gone else inventory

    async def gather(self, bus: str, *, more: bool = False) -> GaudiFacts:
        """The card's files, and what the library says of it, ``more`` when it is measured. Raises HungError."""
        found = await self.lane(bus).ask(gather.gather, self.sys, bus)
        if found.lost:
            return found
        try:
            answer = await self._hlml.ask(bus, more=more)
        except HlmlGoneError as error:
            self._gone = str(error)
            return found
        if answer.code == LOST:
            return replace(found, lost=True)
        failed = tuple(answer.failed) if not answer.code else (f"libhlml (code {answer.code})",)
        return replace(found, values={**found.values, **values_of(answer)}, unreadable=(*found.unreadable, *failed))

    def judge(self, bus: str, index: int, facts: GaudiFacts, before: Accelerator | None) -> Accelerator:
        """What follows from it."""
        del bus
        return judge.accelerator(index, facts, before)

    def silent(self, bus: str, index: int, before: Accelerator | None, problem: Problem) -> Accelerator:
        """What was known of the card, and why it says nothing."""
        return judge.silent(bus, index, before, problem)

    def errors(self, facts: GaudiFacts) -> tuple[int, int] | None:
        """Uncorrectable and correctable memory errors since the driver was loaded."""
        return facts.errors()

    async def read(self, gpu: Accelerator) -> Reading:
        """One card's telemetry. Raises HungError."""
        from kgpu.hw.gaudi import telemetry  # its table is for those who measure

        return telemetry.reading(gpu.uuid, await self.gather(gpu.pci_bus_id, more=True))

    async def close(self) -> None:
        """End every subscription, and the library's process."""
        await super().close()
        await self._hlml.close()


def _gone(why: str) -> HardwareFinding:
    return HardwareFinding(
        subject="", problem=Problem.UNREADABLE,
        what=f"libhlml can't be asked ({why}), so serials, memory, errors and most telemetry are unknown",
        expected="the library of the driver's release", remedy="install habanalabs-firmware-tools, which has it",
    )  # fmt: skip
