"""Small AMD nodes for tests of what AMD's exporter is replaced by."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from kgpu.exporter.labels import Style
from kgpu.exporter.model import PlanInput, Tick, Unit
from kgpu.exporter.render import render
from kgpu.exporter.settings import ExporterSettings
from kgpu.exporter.vendors.amd.page import RocmFamilies
from kgpu.exporter.vendors.amd.settings import RocmConfig
from kgpu.hw.port import Accelerator, Inventory, Partition

SETTINGS = ExporterSettings(style=Style(hostname="n"))
BUS = "0000:05:00.0"


def gpu(index: int = 0, parts: int = 0, mode: str = "spx_nps1") -> Accelerator:
    bus = f"0000:{5 + index:02x}:00.0"
    partitions = tuple(
        Partition(
            uuid=bus if number == 0 else f"amdgpu_xcp_{number}", index=f"{index}:{number}", parent_uuid=bus,
            profile=mode, gpu_instance=number, compute_instance=0,
        )
        for number in range(parts)
    )  # fmt: skip
    return Accelerator(
        vendor="amd", index=index, uuid=bus, name="AMD Instinct MI300X", serial=f"S{index}", mode=mode,
        partitions=partitions,
    )  # fmt: skip


def look(*gpus: Accelerator, before: dict | None = None, failures: dict | None = None, more=None, **values: float):
    """All GPUs have the same values."""
    units = [Unit(one.uuid) for one in gpus]
    return PlanInput(
        inventory=Inventory(vendor="amd", driver_version="6.14", accelerators=gpus),
        now=Tick(
            at=20.0, values=dict.fromkeys(units, values), failures=dict.fromkeys(units, failures or {}),
            answered=frozenset(units),
        ),
        before=None if before is None else Tick(at=10.0, values=dict.fromkeys(units, before)),
        **(more or {}),
    )  # fmt: skip


def page(seen: PlanInput, config: RocmConfig | None = None, healthy=None, settings=SETTINGS) -> str:
    return render(RocmFamilies().plan(seen, settings, config or RocmConfig(), healthy or {}).families)


def series(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """One metric's values by some of its labels, read by Prometheus' own parser."""
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }
