"""Asks a vendor's own exporter which devices it calls unhealthy; promises an answer whatever that does.

One that is not there, hangs, or says what can't be understood leaves the plugin to its own judgement, which is told
once. kgpu's exporter at the same place is no other opinion: it says what the plugin knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import KubeletError
from kgpu.base.service import Complaint
from kgpu.hw.port import Accelerator
from kgpu.kubelet.amd_health import HEALTHY, UNHEALTHY, GpuCondition, ask

SECONDS: Final = 5.0
"""How long an answer may take, as with the replaced plugin."""
WORDS: Final = frozenset({HEALTHY, UNHEALTHY, "unknown", ""})


class ExporterHealth:
    """The exporter at one socket."""

    def __init__(self, path: Path, report: AdviceSink, *, seconds: float = SECONDS) -> None:
        self._path = path
        self._seconds = seconds
        self._complaint = Complaint(report, reason="ExporterHealth", subject=str(path))

    async def ask(self, gpus: Sequence[Accelerator]) -> Mapping[str, str]:
        """The GPUs that it calls unhealthy, by uuid, with its word."""
        if not self._path.exists():
            self._complaint.over()
            return {}
        try:
            answer = await ask(self._path, timeout=self._seconds)
        except KubeletError as error:
            self._complaint.tell(self._unanswered(error.what), line="unanswered")
            return {}
        odd = sorted({condition.health for condition in answer.gpus} - WORDS)
        if odd:
            self._complaint.tell(self._unanswered(f"{odd[0][:40]!r} is no word for health"), line="odd")
        else:
            self._complaint.over()
        return {} if answer.ours else unhealthy(answer.gpus, gpus)

    def _unanswered(self, why: str) -> Advice:
        return Advice(
            subject=str(self._path), what="devices are judged without the vendor's exporter", why=why,
            severity=Severity.WARNING, remedy="look at that exporter's log; it is asked again", reason="ExporterHealth",
        )  # fmt: skip


def unhealthy(conditions: Iterable[GpuCondition], gpus: Sequence[Accelerator]) -> dict[str, str]:
    """The GPUs that are called unhealthy. A partition, or another function of its PCI device, stands for a GPU."""
    owners = {part.uuid.lower(): gpu for gpu in gpus for part in gpu.partitions}
    owners |= {_slot(gpu.pci_bus_id): gpu for gpu in gpus if gpu.pci_bus_id}
    owners |= {gpu.uuid.lower(): gpu for gpu in gpus}
    found: dict[str, str] = {}
    for condition in conditions:
        gpu = owners.get(condition.device) or owners.get(_slot(condition.device))
        if gpu is not None and condition.health == UNHEALTHY:
            found[gpu.uuid] = f"{condition.device} is {UNHEALTHY}"
    return found


def _slot(bus: str) -> str:
    """A PCI address without its function."""
    return bus.lower().rpartition(".")[0]
