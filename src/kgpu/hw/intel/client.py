"""``IntelReader``: the hardware port over the files of the drivers i915 and xe."""

from __future__ import annotations

from kgpu.base.errors import DriverFault, HwError
from kgpu.formats.names import INTEL
from kgpu.hw.file_reader import CardScan, FileReader
from kgpu.hw.intel import facts as judge
from kgpu.hw.intel import gather
from kgpu.hw.intel.facts import IntelFacts
from kgpu.hw.port import Accelerator, Problem, Reading


class IntelReader(FileReader[CardScan, IntelFacts]):
    """Implements ``kgpu.hw.port.Reader``."""

    VENDOR = INTEL

    def scan(self) -> CardScan:
        """The GPUs that either driver has. Raises HwError when none is loaded."""
        try:
            return gather.scan(self.sys)
        except OSError as error:
            raise HwError(
                "neither the driver i915 nor xe is loaded", f"{self.sys}/bus/pci/drivers/i915 or xe",
                "load the one for this GPU (modprobe xe), or a kernel that has it",
                fault=DriverFault.NOT_LOADED,
            ) from error  # fmt: skip

    async def gather(self, bus: str) -> IntelFacts:
        """Read one GPU. Raises HungError."""
        return await self.lane(bus).ask(gather.gather, self.sys, bus)

    def judge(self, bus: str, index: int, facts: IntelFacts, before: Accelerator | None) -> Accelerator:
        """What follows from it."""
        del bus
        return judge.accelerator(index, facts, before)

    def silent(self, bus: str, index: int, before: Accelerator | None, problem: Problem) -> Accelerator:
        """What was known of the GPU, and why it says nothing."""
        return judge.silent(bus, index, before, problem)

    def errors(self, facts: IntelFacts) -> tuple[int, int] | None:
        """None: neither driver counts memory errors in files."""
        del facts
        return None

    async def read(self, gpu: Accelerator) -> Reading:
        """One GPU's telemetry. Raises HungError."""
        return gather.reading(await self.gather(gpu.pci_bus_id))
