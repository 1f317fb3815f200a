"""Small inputs for the exporter's tests: GPUs with and without MIG, readings, holdings; and reading text back."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kgpu.exporter.model import PlanInput, Tick, Unit
from kgpu.exporter.render import ExpositionFormat, render
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.kubelet.pod_resources import DeviceClaim, Holding

DRIVER = "570.133.20"


def uuid(index: int) -> str:
    return f"GPU-{index:08d}-1111-2222-3333-444444444444"


def mig_uuid(index: int, gi: int, ci: int = 0) -> str:
    return f"MIG-{index:08d}-{gi:04d}-{ci:04d}-3333-444444444444"


def partition(index: int, gi: int, profile: str = "1g.10gb", ci: int = 0) -> Partition:
    return Partition(
        uuid=mig_uuid(index, gi, ci), index=f"{index}:{gi}", parent_uuid=uuid(index), profile=profile,
        gpu_instance=gi, compute_instance=ci, memory_mib=9728,
    )  # fmt: skip


def gpu(index: int = 0, *partitions: Partition, **more: object) -> Accelerator:
    facts: dict = {
        "vendor": "nvidia", "index": index, "uuid": uuid(index), "name": "NVIDIA H100 80GB HBM3", "minor": index,
        "pci_bus_id": f"0000:{0x1B + index:02x}:00.0", "mig_enabled": bool(partitions), "partitions": partitions,
    }  # fmt: skip
    return Accelerator(**{**facts, **more})


def inventory(*gpus: Accelerator) -> Inventory:
    return Inventory(vendor="nvidia", driver_version=DRIVER, accelerators=gpus)


def look(*gpus: Accelerator, values: dict | None = None, failures: dict | None = None, **more: object) -> PlanInput:
    """Every GPU draws 100 W per index plus 1, every instance uses 10 MiB times its number, unless ``values`` differ."""
    usual: dict = {}
    for one in gpus:
        whole = {"power_w": 100.0 * one.index + 1, "temperature_c": 40.0, "driver_version": DRIVER}
        usual[Unit(one.uuid)] = whole if one.partitions else {**whole, "memory_used_mib": 5.0}
        for part in one.partitions:
            usual[Unit(one.uuid, part.gpu_instance)] = {"memory_used_mib": 10.0 * part.gpu_instance}
    known = usual if values is None else values
    answered = frozenset(unit for unit in known if unit.uuid and unit.gpu_instance is None and unit.link is None)
    now = Tick(at=10.0, values=known, failures=failures or {}, answered=answered)
    return PlanInput(inventory=inventory(*gpus), now=now, **more)


def holding(
    pod: str, *devices: str, namespace: str = "team", container: str = "main", resource: str = "nvidia.com/gpu",
    claim: DeviceClaim | None = None,
):  # fmt: skip
    return Holding(namespace=namespace, pod=pod, container=container, resource=resource, devices=devices, claim=claim)


def series(planned, name: str) -> list[tuple[dict[str, str], float]]:
    """(labels, value) of one metric, read back with Prometheus' own parser."""
    text = render(planned.families)
    return [
        (dict(sample.labels), sample.value)
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == name
    ]


def read_both(families) -> tuple[list, list]:
    """All samples by each format's parser, as (name, labels, value)."""
    return tuple(
        [(one.name, dict(one.labels), one.value) for family in parse(render(families, form)) for one in family.samples]
        for parse, form in ((parse_text, ExpositionFormat.TEXT), (parse_openmetrics, ExpositionFormat.OPENMETRICS))
    )
