"""The field table: rows by subject. The order here is the order of the output; ids are DCGM's.

Sources: NVIDIA's field header and NVML's header for ids, units and calls; the exporter's published metric names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kgpu.exporter.fields import MetricField
from kgpu.exporter.rows.computed import COMPUTED
from kgpu.exporter.rows.device import DEVICE
from kgpu.exporter.rows.errors import ERRORS
from kgpu.exporter.rows.facts import FACTS
from kgpu.exporter.rows.links import LINKS
from kgpu.exporter.rows.profiling import PROFILING
from kgpu.exporter.rows.renamed import RENAMED


def _renamed(field: MetricField) -> MetricField:
    return replace(field, aliases=(*field.aliases, RENAMED[field.name])) if field.name in RENAMED else field


ROWS: Final[tuple[MetricField, ...]] = tuple(
    _renamed(field) for field in (*DEVICE, *ERRORS, *LINKS, *PROFILING, *FACTS, *COMPUTED)
)
