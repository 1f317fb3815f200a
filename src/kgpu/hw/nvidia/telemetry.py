"""Telemetry of one GPU, its GPU instances and its NVLinks, many times a second if need be.

Promises: a reading that fails is a failure of that reading alone; nothing here waits. Each call is bound once to the
way that this driver knows, all fields of a GPU are asked in one call, and what it turned out not to have is asked
again only now and then. Averages (GPM) are between this reading and the one before; the first has none.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import time

from kgpu.hw.nvidia.codes import INVALID_ARGUMENT, NOT_FOUND
from kgpu.hw.nvidia.fallbacks import GONE, Calls, Nvml, NvmlError, ask
from kgpu.hw.nvidia.gpm import ABSENT, Gpm
from kgpu.hw.nvidia.slices import GpuSlices
from kgpu.hw.nvidia.telemetry_rows import (
    FAST,
    FIELDS,
    GPU_LINK_FIELDS,
    INSTEAD,
    LINK_FIELDS,
    MIB,
    NO_NUMBER,
    REASONS,
    SLOW,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    FieldRow = tuple[str, int, int, int, int | None]

SLOW_S = 10.0
AGAIN_S = 60.0
MAX_LINKS = 36
FIELDS_AT_ONCE = 128
MEMORY = ("memory_total_mib", "memory_used_mib", "memory_free_mib", "memory_reserved_mib", "memory_used_ratio")
# nvmlFieldValue_t: field, scope, time, latency, nvmlValueType_t, return code, the value's 8 bytes. Read as bytes, since
# attributes are slow.
FIELD = struct.Struct("=IIqqIIQ")
UNSIGNED = frozenset({1, 2, 3, 6})
SIGNED = {4: "=q", 5: "=i4x"}


class Measurements:
    """The values read from one unit so far, and the readings that failed."""

    __slots__ = ("failures", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.failures: dict[str, str] = {}

    def fail(self, code: int, *keys: str) -> None:
        """Note why readings have no value, unless the GPU does not have them."""
        if code not in ABSENT:
            for key in keys:
                self.failures[key] = REASONS.get(code, f"nvml-{code}")

    def frame(self, **more: Any) -> dict[str, Any]:
        """For the wire."""
        return {**more, "values": self.values, "failures": self.failures}


class WantedReadings:
    """The rows that give the readings asked for; all of them for None."""

    def __init__(self, keys: frozenset[str] | None) -> None:
        self._keys = keys
        self.fast = self._some(FAST)
        self.slow = self._some(SLOW)
        self.instead = tuple(row for row in INSTEAD if self.of(row[0]))
        self.memory = any(map(self.of, MEMORY))
        self.link_states = any(map(self.of, ("nvlink_links", "nvlink_active", "nvlink_down")))
        self.link_fields = any(key.startswith("nvlink_") for key in keys) if keys is not None else True

    def of(self, key: str) -> bool:
        """Whether somebody wants this reading."""
        return self._keys is None or key in self._keys

    def fields(self, links: tuple[int, ...]) -> Iterator[FieldRow]:
        """(key, field, scope, divisor, link) of the fields for a GPU with these links."""
        return (row for row in _every_field(links) if self.of(row[0]))

    def _some(self, rows: Any) -> tuple[Any, ...]:
        return tuple(row for row in rows if any(self.of(key) for key, _, _ in row[2]))


class CachedGpu:
    """What is remembered of one GPU: rarely changing values, and what it has."""

    __slots__ = ("batches", "links", "probed", "slow", "slow_at", "with_mig")

    def __init__(self) -> None:
        self.slow = Measurements()
        self.slow_at = -math.inf
        self.probed = -math.inf
        self.with_mig = False
        self.batches: list[tuple[list[FieldRow], Any]] = []
        self.links: tuple[int, ...] = ()


class Telemetry:
    """Reads through one initialised library. ``clock`` gives seconds."""

    def __init__(self, nvml: Nvml, calls: Calls, slices: GpuSlices, clock: Any = time.monotonic) -> None:
        self.nvml = nvml
        self.slices = slices
        self.gpm = Gpm(nvml, clock)
        self._clock = clock
        self._calls = calls
        self._kept: dict[str, CachedGpu] = {}
        self._get_fields: Any = nvml.function("nvmlDeviceGetFieldValues")
        self._asked: list[str] | None = None
        self._wanted = WantedReadings(None)

    def want(self, keys: list[str] | None) -> None:
        """Read these from now on, or all."""
        if keys == self._asked:
            return
        self._asked = keys
        self._wanted = WantedReadings(None if keys is None else frozenset(keys))
        self.gpm.want(keys)
        for kept in self._kept.values():
            kept.probed = -math.inf

    def readings(self, handle: Any, uuid: str) -> dict[str, Any]:
        """Everything of one GPU, for the wire. Raises NvmlError when the GPU as a whole can't be reached."""
        now = self._clock()
        kept = self._kept.setdefault(uuid, CachedGpu())
        measured = Measurements()
        mig_mode = self._calls("mig_mode")
        mig = ask(mig_mode, handle) == 0 and mig_mode.value(0) == 1
        if mig != kept.with_mig or now - kept.probed >= AGAIN_S:
            kept.slow_at = -math.inf
            self.slices.forget(uuid)
        wanted = self._wanted
        self._rows(wanted.fast, handle, measured)
        if wanted.memory:
            self._memory(handle, measured)
        if now - kept.slow_at >= SLOW_S:
            kept.slow, kept.slow_at = self._slow(handle), now
        links: dict[int, Measurements] = {}
        self._fields(handle, kept, (now, mig), measured, links)
        for key, name, arguments, divisor in wanted.instead:
            if key not in measured.values and key not in measured.failures:
                self._rows(((name, arguments, ((key, "", divisor),)),), handle, measured)
        if wanted.link_states:
            self._link_states(handle, kept, measured)
        measured.values.update(kept.slow.values)
        measured.failures.update(kept.slow.failures)
        self.gpm.read(handle, uuid, None, measured.values)
        instances = self._instances(handle, uuid) if mig else []
        frames = [part.frame(link=number) for number, part in links.items()]
        return measured.frame(uuid=uuid, instances=instances, links=frames)

    # --- parts of a reading ---

    def _rows(self, rows: Any, handle: Any, measured: Measurements) -> None:
        values = measured.values
        for name, arguments, keys in rows:
            bound = self._calls(name)
            code = ask(bound, handle, *arguments)
            if code != 0:
                measured.fail(code, *(key for key, _, _ in keys))
                continue
            for key, member, divisor in keys:
                value = bound.value(member)
                if value is not None:
                    values[key] = value if divisor == 1 else value / divisor

    def _slow(self, handle: Any) -> Measurements:
        measured = Measurements()
        self._rows(self._wanted.slow, handle, measured)
        bound = self._calls("unrepairable")
        if self._wanted.of("memory_unrepairable"):
            code = ask(bound, handle)
            measured.fail(code, "memory_unrepairable")
            if code == 0:
                # Published headers differ in whether a version, which nobody sets, goes before the flag.
                measured.values["memory_unrepairable"] = int(
                    bool(bound.outs[0].version or bound.outs[0].unrepairableMemory)
                )
        bound = self._calls("cc_state")
        if self._wanted.of("cc_mode") and ask(bound) == 0:
            measured.values["cc_mode"] = bound.outs[0].ccFeature
        if not self._wanted.of("vgpu_licensed"):
            return measured
        bound = self._calls("license")
        code = ask(bound, handle)
        measured.fail(code, "vgpu_licensed")
        if code == 0 or code in ABSENT:
            features = bound.outs[0] if code == 0 else None
            held = features is not None and features.isGridLicenseSupported and any(
                features.gridLicensableFeatures[place].featureState for place in range(features.licensableFeaturesCount)
            )  # fmt: skip
            measured.values["vgpu_licensed"] = int(bool(held))
        return measured

    def _memory(self, handle: Any, measured: Measurements) -> int:
        bound = self._calls("memory_detail")
        code = ask(bound, handle)
        if code != 0:
            measured.fail(code, "memory_total_mib", "memory_used_mib", "memory_free_mib", "memory_reserved_mib")
            return code
        memory = bound.outs[0]
        total, used, reserved = memory.total, memory.used, getattr(memory, "reserved", None)
        measured.values.update(
            memory_total_mib=total / MIB, memory_used_mib=used / MIB, memory_free_mib=memory.free / MIB
        )
        if reserved is not None:
            measured.values["memory_reserved_mib"] = reserved / MIB
            if total > reserved:
                measured.values["memory_used_ratio"] = used / (total - reserved)
        return 0

    def _fields(
        self, handle: Any, kept: CachedGpu, moment: tuple[float, bool], measured: Measurements, links: Any
    ) -> None:
        """All fields, asked in as few calls as may be; ``links`` get what is of one link."""
        now, mig = moment
        if now - kept.probed >= AGAIN_S or mig != kept.with_mig:
            kept.probed, kept.with_mig = now, mig
            kept.links = self._links(handle) if self._wanted.link_states or self._wanted.link_fields else ()
            kept.batches = _batches(self._wanted.fields(kept.links))
        absent: set[Any] = set()
        spoilt: set[Any] = set()
        for rows, array in kept.batches if self._get_fields is not None else ():
            code = self._get_fields(handle, len(rows), array)
            if code in GONE:
                raise NvmlError(code, "fields", self.nvml.error_text(code))
            for row, (_, _, _, _, kind, field_code, raw) in zip(rows, FIELD.iter_unpack(array), strict=True):
                key, _, _, divisor, link = row
                into = measured if link is None else links.setdefault(link, Measurements())
                if code or field_code:
                    if field_code in GONE:
                        raise NvmlError(field_code, f"field {row[1]}", self.nvml.error_text(field_code))
                    spoilt.add((link, key))
                    into.fail(code or field_code, key)
                    if not code and field_code in ABSENT:
                        absent.add(row)
                    continue
                value = raw if kind in UNSIGNED else _value(kind, raw)
                if not math.isfinite(value):
                    # JSON has no such number: the parent would take the whole answer for a defect.
                    spoilt.add((link, key))
                    into.failures[key] = NO_NUMBER
                    continue
                if divisor != 1:
                    value /= divisor
                into.values[key] = into.values[key] + value if key in into.values else value
        for link, key in spoilt:
            # Half of a sum is no sum.
            (measured if link is None else links[link]).values.pop(key, None)
        if absent:
            kept.batches = _batches(row for rows, _ in kept.batches for row in rows if row not in absent)
        for link in [number for number, part in links.items() if not part.values and not part.failures]:
            del links[link]

    def _links(self, handle: Any) -> tuple[int, ...]:
        bound = self._calls("link_state")
        links = []
        for link in range(MAX_LINKS):
            code = ask(bound, handle, link)
            if code == 0:
                links.append(link)
            elif link == 0 or code == INVALID_ARGUMENT:
                break
        return tuple(links)

    def _link_states(self, handle: Any, kept: CachedGpu, measured: Measurements) -> None:
        if not kept.links:
            return
        bound = self._calls("link_state")
        down = []
        for link in kept.links:
            code = ask(bound, handle, link)
            if code != 0:
                measured.fail(code, "nvlink_active")
            elif bound.value("") != 1:
                down.append(link)
        measured.values["nvlink_links"] = len(kept.links)
        if "nvlink_active" not in measured.failures:
            measured.values["nvlink_active"] = len(kept.links) - len(down)
            measured.values["nvlink_down"] = " ".join(map(str, down))

    def _instances(self, handle: Any, uuid: str) -> list[dict[str, Any]]:
        instances: dict[int, dict[str, Any]] = {}
        for mig, _, gi, _ in self.slices.of(handle, uuid):
            if gi in instances:
                continue
            measured = Measurements()
            if self._memory(mig, measured) in (NOT_FOUND, INVALID_ARGUMENT):
                # Destroyed since they were listed.
                self.slices.forget(uuid)
                continue
            self.gpm.read(handle, uuid, gi, measured.values)
            instances[gi] = measured.frame(gpu_instance=gi)
        self.gpm.forget_others(uuid, instances)
        return list(instances.values())


def _value(kind: int, raw: int) -> Any:
    """A value that is signed or a double, from its 8 bytes."""
    return struct.unpack(SIGNED.get(kind, "=d"), raw.to_bytes(8, sys.byteorder))[0]


def _batches(rows: Iterable[FieldRow]) -> list[tuple[list[FieldRow], Any]]:
    """Rows with the array that asks for them, as many at once as every driver takes."""
    every = list(rows)
    batches = []
    for start in range(0, len(every), FIELDS_AT_ONCE):
        part = every[start : start + FIELDS_AT_ONCE]
        array = (ctypes.c_ubyte * (FIELD.size * len(part)))()
        for place, row in enumerate(part):
            FIELD.pack_into(array, FIELD.size * place, row[1], row[2], 0, 0, 0, 0, 0)
        batches.append((part, array))
    return batches


def _every_field(links: tuple[int, ...]) -> Iterator[FieldRow]:
    """(key, field, scope, divisor, link) of all fields for a GPU with these links."""
    for key, field, scope, divisor in FIELDS:
        yield key, field, scope, divisor, None
    for link in links:
        for key, field in GPU_LINK_FIELDS:
            yield key.format(link), field, link, 1, None
        for key, field in LINK_FIELDS:
            yield key, field, link, 1, link
