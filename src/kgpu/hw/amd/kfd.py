"""What the driver shows of the node as a whole: its GPUs' addresses, the parts' DRM nodes, and the KFD's topology."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kgpu.hw import sysfs as files
from kgpu.hw.file_reader import CardScan
from kgpu.hw.sysfs import GarbageError

DRIVERS: Final = "module/amdgpu/drivers"
KFD: Final = "class/kfd/kfd"
GENERATION: Final = f"{KFD}/topology/generation_id"
RETRIES: Final = 4
NODES: Final = f"{KFD}/topology/nodes"
PROCESSES: Final = f"{KFD}/proc"
MOST: Final = 4096
"""Entries of a folder that are looked at."""
_BUS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_XCP: Final = re.compile(r"amdgpu_xcp_[0-9]{1,5}", re.ASCII)
_DRM: Final = re.compile(r"(card|renderD)([0-9]{1,6})", re.ASCII)
_VRAM: Final = re.compile(r"vram_([0-9]{1,10})", re.ASCII)
XGMI, PCIE = 11, 2
KNOWN: Final = frozenset({XGMI, PCIE})
"""Types of links that say how near two GPUs are; one of another type says nothing of it."""


class NoDriverError(Exception):
    """A folder that the driver makes is not there; its only argument is the path."""


@dataclass(frozen=True, slots=True)
class DrmNumbers:
    """The numbers in /dev/dri of a GPU or one of its parts; ``name`` is a part's device, such as amdgpu_xcp_3."""

    card: int
    render: int
    name: str = ""

    @property
    def device_nodes(self) -> tuple[str, ...]:
        return f"/dev/dri/card{self.card}", f"/dev/dri/renderD{self.render}"


@dataclass(frozen=True, slots=True)
class KfdNode:
    """A GPU, or a part of one, in the KFD's topology: its number there, and where it is.

    ``bus`` is the PCI address without the function, which is the part's number (``part``).
    """

    number: int
    gpu_id: int
    render: int
    bus: str
    part: int
    simds: int
    simds_per_cu: int
    target: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeScan(CardScan):
    """One look at the node. The library's version is that of the driver's sources."""

    parts: dict[int, DrmNumbers] = field(default_factory=dict)
    nodes: tuple[KfdNode, ...] = ()


def scan(sys: str) -> NodeScan:
    """Look at the node now, again if the topology has changed meanwhile. Raises NoDriverError."""
    before, found = _line(f"{sys}/{GENERATION}"), _scan(sys)
    for _ in range(RETRIES):
        after = _line(f"{sys}/{GENERATION}")
        if after == before:
            break
        before, found = after, _scan(sys)
    return found


def _scan(sys: str) -> NodeScan:
    buses = sorted(
        entry
        for driver in _names(f"{sys}/{DRIVERS}", needed=True)
        for entry in _names(f"{sys}/{DRIVERS}/{driver}")
        if _BUS.fullmatch(entry)
    )
    return NodeScan(
        buses=tuple(dict.fromkeys(buses)),
        driver_version=_line(f"{sys}/module/amdgpu/version"),
        library_version=_line(f"{sys}/module/amdgpu/srcversion"),
        parts={numbers.render: numbers for numbers in _parts(sys)},
        nodes=tuple(_nodes(sys)),
    )


def drm_numbers(folder: str, name: str = "") -> DrmNumbers | None:
    """The numbers in a device's folder ``drm``, None without both."""
    found = [match for entry in _names(folder) if (match := _DRM.fullmatch(entry))]
    numbers = {match[1]: int(match[2]) for match in found}
    return DrmNumbers(numbers["card"], numbers["renderD"], name) if len(numbers) == 2 else None


def links(sys: str, node: KfdNode) -> dict[int, int]:
    """The types of a node's links to others, by their numbers in the topology."""
    found: dict[int, int] = {}
    for kind in ("p2p_links", "io_links"):
        folder = f"{sys}/{NODES}/{node.number}/{kind}"
        for entry in _names(folder):
            with contextlib.suppress(OSError, GarbageError):
                row = files.properties(f"{folder}/{entry}/properties")
                if "node_to" in row:
                    found[row["node_to"]] = row.get("type", 0)
    return found


def memory_by_process(sys: str) -> Iterator[tuple[int, int, int]]:
    """(pid, the KFD's number of a GPU, bytes of its memory) of every process that has some."""
    for pid in _names(f"{sys}/{PROCESSES}"):
        if not (pid.isdecimal() and len(pid) <= 10):
            continue
        for entry in _names(f"{sys}/{PROCESSES}/{pid}"):
            if match := _VRAM.fullmatch(entry):
                with contextlib.suppress(OSError, GarbageError):
                    if size := files.number(f"{sys}/{PROCESSES}/{pid}/{entry}"):
                        yield int(pid), int(match[1]), size


def _parts(sys: str) -> Iterator[DrmNumbers]:
    for name in _names(f"{sys}/devices/platform"):
        if _XCP.fullmatch(name) and (numbers := drm_numbers(f"{sys}/devices/platform/{name}/drm", name)):
            yield numbers


def _nodes(sys: str) -> Iterator[KfdNode]:
    entries = _names(f"{sys}/{NODES}", needed=True)
    for entry in sorted((entry for entry in entries if entry.isdecimal()), key=int):
        folder = f"{sys}/{NODES}/{entry}"
        with contextlib.suppress(OSError, GarbageError):
            row = files.properties(f"{folder}/properties")
            if row.get("drm_render_minor", 0) <= 0 or row.get("cpu_cores_count", 0):
                continue
            place = row.get("location_id", 0)
            yield KfdNode(
                number=int(entry),
                gpu_id=files.number(f"{folder}/gpu_id"),
                render=row["drm_render_minor"],
                bus=f"{row.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}",
                part=place & 7,
                simds=row.get("simd_count", 0),
                simds_per_cu=row.get("simd_per_cu", 0),
                target=row.get("gfx_target_version", 0),
                memory_bytes=_memory(folder),
            )


def _memory(folder: str) -> int:
    with contextlib.suppress(OSError, GarbageError):
        return files.properties(f"{folder}/mem_banks/0/properties").get("size_in_bytes", 0)
    return 0


def _line(path: str) -> str:
    with contextlib.suppress(OSError, GarbageError):
        return files.line(path)
    return ""


def _names(folder: str, *, needed: bool = False) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:MOST]
    except OSError as error:
        if needed:
            raise NoDriverError(folder) from error
        return []
