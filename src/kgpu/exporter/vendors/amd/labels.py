"""The labels of AMD's exporter: those of every series in its order, and those that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kgpu.exporter.labels import Pairs
from kgpu.exporter.vendors.amd.settings import RocmConfig
from kgpu.exporter.vendors.families import Labelled

VENDOR: Final = "Advanced Micro Devices, Inc."


def _mode(seen: Labelled, place: int) -> str:
    words = seen.gpu.mode.split("_")
    return words[place] if len(words) > place else ""


# ``deployment_mode`` is what the GPU's driver runs on; kgpu reads the node's own.
ALWAYS: Final[tuple[tuple[str, Callable[[Labelled], str]], ...]] = (
    ("serial_number", lambda seen: seen.gpu.serial),
    ("gpu_id", lambda seen: str(seen.number)),
    ("pod", lambda seen: seen.holder.pod if seen.holder else ""),
    ("namespace", lambda seen: seen.holder.namespace if seen.holder else ""),
    ("container", lambda seen: seen.holder.container if seen.holder else ""),
    ("job_id", lambda seen: seen.job),
    ("job_user", lambda seen: ""),  # noqa: ARG005 - the files of batch jobs have ids alone
    ("job_partition", lambda seen: ""),  # noqa: ARG005
    ("card_model", lambda seen: seen.gpu.name),
    ("hostname", lambda seen: seen.hostname),
    ("gpu_partition_id", lambda seen: str(seen.part)),
    ("gpu_compute_partition_type", lambda seen: _mode(seen, 0)),
    ("gpu_memory_partition_type", lambda seen: _mode(seen, 1)),
    ("deployment_mode", lambda seen: "baremetal"),  # noqa: ARG005
)
OPTIONAL: Final[Mapping[str, Callable[[Labelled], str]]] = {
    "gpu_uuid": lambda seen: seen.uuid,
    "pod_uuid": lambda seen: seen.pod.uid,
    "card_vendor": lambda seen: VENDOR,  # noqa: ARG005
    "driver_version": lambda seen: seen.driver,
    "vbios_version": lambda seen: seen.said.get("vbios_version", ""),
}


def labels(seen: Labelled, config: RocmConfig) -> Pairs:
    """All labels of a GPU's or a partition's series, each name once."""
    found = {name: value(seen) for name, value in ALWAYS}
    found |= {name: value(seen) for name, value in OPTIONAL.items() if name in config.labels}
    found |= {name: seen.pod.labels.get(key, "") for name, key in config.pod_labels}
    return tuple((found | dict(config.custom)).items())
