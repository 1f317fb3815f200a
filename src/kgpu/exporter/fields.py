"""The types of the field table; ``field_table`` finds a row by any spelling that a counters file may have.

A row describes one field: its names, type and help, where its value comes from, and how it is converted. The rows
themselves are data in ``rows/``. A field has up to two spellings with units of their own: the usual one
(``DCGM_FI_DEV_SM_CLOCK``, MHz) and generation c's (``DCGM_FI_DEV_SM_CLOCK_HERTZ``); the spelling determines the unit,
so both can be exported side by side.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kgpu.exporter.model import Generation, MetricKind, Value

PREFIX: Final = "DCGM_FI_DEV_"
PROF: Final = "DCGM_FI_PROF_"


class FieldScope(enum.StrEnum):
    """What a field is about.

    With MIG on, GPU fields are the whole GPU's and are exported once, INSTANCE fields once per GPU instance; without
    MIG both are the GPU's. EITHER is where it happened, on an instance or on the whole GPU.
    """

    GPU = "gpu"
    INSTANCE = "mig"
    EITHER = "either"
    LINK = "link"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class ReadingSource:
    """A reading that gives the value, times ``factor``; ``rate``: it grows, and its change per second is meant.

    ``call`` is where the hardware layer gets the reading, in NVML's words.
    """

    reading: str
    call: str = ""
    factor: float = 1.0
    rate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Modern:
    """Generation c's spelling: ``factor`` comes on top of the source's. ``kind`` None: as in the usual spelling."""

    name: str
    unit: str = ""
    factor: float = 1.0
    decimals: bool = False
    kind: MetricKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricField:
    """One field. ``sources`` are tried in order.

    ``decimals``: six decimals, else whole and rounded down. Values above ``top`` are sensors that do not answer.
    ``default`` rows are the usual set, ``default_in_c`` generation c's besides; ``extra`` rows are on unless the usual
    set alone is asked for.
    """

    id: int
    name: str
    kind: MetricKind
    help: str
    unit: str = ""
    sources: tuple[ReadingSource, ...] = ()
    scope: FieldScope = FieldScope.GPU
    decimals: bool = False
    top: float = math.inf
    modern: Modern | None = None
    aliases: tuple[str, ...] = ()
    kind_in_a: MetricKind | None = None
    default: bool = False
    default_in_c: bool = False
    extra: bool = False

    @property
    def computed(self) -> bool:
        """True for a metric without a reading: its samples are computed (``PlanInput.computed``)."""
        return not self.sources


@dataclass(frozen=True)
class Spelled:
    """A field under one of its names. Without slots, so that properties needed for every value are cached."""

    field: MetricField
    name: str
    modern: bool = False

    @cached_property
    def decimals(self) -> bool:
        return self.field.modern.decimals if self.modern and self.field.modern else self.field.decimals

    @cached_property
    def factor(self) -> float:
        return self.field.modern.factor if self.modern and self.field.modern else 1.0

    @property
    def unit(self) -> str:
        """The unit of measure of the metric's value, "" for plain numbers."""
        return (self.field.modern.unit if self.modern and self.field.modern else "") or self.field.unit

    def kind(self, generation: Generation) -> MetricKind:
        """The type in the default set."""
        if self.modern and self.field.modern and self.field.modern.kind is not None:
            return self.field.modern.kind
        if generation is Generation.A and self.field.kind_in_a is not None:
            return self.field.kind_in_a
        return self.field.kind


def spell(field: MetricField, generation: Generation) -> Spelled:
    """The field under the name that a generation has for it."""
    if generation is Generation.C and field.modern is not None:
        return Spelled(field, field.modern.name, modern=True)
    return Spelled(field, field.name)


def render_value(spelled: Spelled, value: Value, factor: float) -> str | None:
    """Return a reading as the metric's text; None for no value: blank sensors, not a number, infinite.

    Raises TypeError or ValueError for what can't be a number.
    """
    number = float(value) * factor * spelled.factor
    if not math.isfinite(number) or number > spelled.field.top:
        return None
    # 2.9999999999 is a product of factors, not a value below three.
    return f"{number:.6f}" if spelled.decimals else str(math.floor(number + 1e-9))
