"""How simulated GPUs reach each other: PCI tree, NUMA nodes and NVLink, from YAML or an ``nvidia-smi topo -m`` text.

A description becomes a ``Topology``: for n GPUs the NUMA node of each, the PCI level of each pair (NVML's values) and
the NVLink lanes of each pair, or "all lanes go to NVSwitches". It can be cut to fewer GPUs, and repeats as whole
boxes for more. Every mistake in a description is a ``ConfigError``; nothing here touches files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from kgpu.base.errors import ConfigError

INTERNAL, SINGLE, MULTIPLE, HOSTBRIDGE, NODE, SYSTEM = 0, 10, 20, 30, 40, 50
MAX_GPUS: Final = 64
MAX_NUMA: Final = 256
_WORDS: Final[Mapping[str, int]] = {
    "PIX": SINGLE,
    "PXB": MULTIPLE,
    "PHB": HOSTBRIDGE,
    "NODE": NODE,
    "SYS": SYSTEM,
    "SOC": SYSTEM,  # before driver 384
    "PSB": INTERNAL,  # before driver 361: one board
}
_LEVEL_NAMES: Final[Mapping[int, str]] = {
    INTERNAL: "INT",
    SINGLE: "PIX",
    MULTIPLE: "PXB",
    HOSTBRIDGE: "PHB",
    NODE: "NODE",
    SYSTEM: "SYS",
}

Lanes = Annotated[int, msgspec.Meta(ge=1, le=36)]
GpuIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_GPUS)]
CpuList = Annotated[str, msgspec.Meta(pattern=r"^(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?$", max_length=4096)]


class Bridge(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A PCI host bridge. ``gpus`` holds GPU indices, and a list for each switch, whose items are the same again."""

    gpus: list[Any]
    numa: Annotated[int, msgspec.Meta(ge=0, lt=MAX_NUMA)] = 0


class NvlinkSpec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Either ``switched: true`` (every lane ends at an NVSwitch) or ``pairs``: [gpu, gpu, lanes] rows."""

    switched: bool = False
    pairs: list[tuple[GpuIndex, GpuIndex, Lanes]] = []


class TopologySpec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The YAML form. ``numa`` lists each NUMA node's CPUs (``0-15,32-47``); ``boards`` GPUs sharing one card.

    ``matrix`` is an ``nvidia-smi topo -m`` table and stands in for ``pcie``, ``nvlink`` and ``boards``.
    """

    numa: Annotated[list[CpuList], msgspec.Meta(max_length=MAX_NUMA)] = []
    pcie: list[Bridge] = []
    nvlink: NvlinkSpec = NvlinkSpec()
    boards: list[list[GpuIndex]] = []
    matrix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """n GPUs: ``numa[i]`` (-1: none), ``cpus[node]``, symmetric ``levels[i][j]`` and ``lanes[i][j]`` (0: no link)."""

    numa: tuple[int, ...]
    cpus: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[int, ...], ...]
    switched: bool = False

    @property
    def count(self) -> int:
        """Number of GPUs described."""
        return len(self.numa)

    def resized(self, count: int) -> Topology:
        """The first ``count`` GPUs; beyond the described ones the whole box repeats with NUMA nodes of its own."""
        size = self.count
        boxes = -(-count // size)
        node_step = max(len(self.cpus), max(self.numa) + 1, 1)

        def pair(rows: tuple[tuple[int, ...], ...], i: int, j: int, apart: int) -> int:
            return rows[i % size][j % size] if i // size == j // size else apart

        indices = range(count)
        return Topology(
            numa=tuple(-1 if self.numa[i % size] < 0 else self.numa[i % size] + i // size * node_step for i in indices),
            cpus=_repeat_cpus(self.cpus, boxes),
            levels=tuple(tuple(pair(self.levels, i, j, SYSTEM) for j in indices) for i in indices),
            lanes=tuple(tuple(pair(self.lanes, i, j, 0) for j in indices) for i in indices),
            switched=self.switched,
        )

    def matrix(self) -> str:
        """As ``nvidia-smi topo -m`` shows it, without the affinity columns; a switched fabric shows its PCI levels."""
        names = [f"GPU{i}" for i in range(self.count)]
        rows = ["\t".join(["", *names])]
        for i, row in enumerate(self.levels):
            cells = [
                "X" if i == j else f"NV{self.lanes[i][j]}" if self.lanes[i][j] else _LEVEL_NAMES[level]
                for j, level in enumerate(row)
            ]
            rows.append("\t".join([names[i], *cells]))
        return "\n".join(rows) + "\n"


def flat(count: int) -> Topology:
    """``count`` GPUs under one host bridge of NUMA node 0, without NVLink: a profile that says nothing."""
    return resolve(TopologySpec(pcie=[Bridge(gpus=list(range(count)))]), source="default topology")


def resolve(spec: TopologySpec, *, source: str) -> Topology:
    """Turn the YAML form into a ``Topology``. Raises ConfigError naming ``source``."""
    if spec.matrix is not None:
        if spec.pcie or spec.nvlink.pairs or spec.boards:
            raise _bad(source, "matrix stands beside pcie, nvlink pairs or boards", "one way to describe the links")
        return parse_matrix(spec.matrix, source=source, cpus=tuple(spec.numa), switched=spec.nvlink.switched)
    paths = _switch_paths(spec, source)
    count = len(paths)
    if sorted(paths) != list(range(count)) or not count:
        raise _bad(source, f"pcie names the GPUs {sorted(paths)}", "every GPU from 0 to the last one, once")
    levels = [[_ancestor_level(paths[i], paths[j]) if i != j else INTERNAL for j in range(count)] for i in range(count)]
    for a, b in _board_pairs(spec.boards, count, source):
        levels[a][b] = levels[b][a] = INTERNAL
    return Topology(
        numa=tuple(paths[i][0] for i in range(count)),
        cpus=tuple(spec.numa),
        levels=tuple(map(tuple, levels)),
        lanes=_lanes(spec.nvlink, count, source),
        switched=spec.nvlink.switched,
    )


def parse_matrix(text: str, *, source: str, cpus: tuple[str, ...] = (), switched: bool = False) -> Topology:
    """Read an ``nvidia-smi topo -m`` table (other devices and the legend are skipped).

    Where NVLink hides the PCI level of a pair, the level is the best that the other cells prove (two hops are no nearer
    than the farther one); failing that, NODE within one NUMA node and SYS across. Raises ConfigError.
    """
    rows, numa, by_node = _matrix_cells(text, source)
    count = len(rows)
    levels = [[SYSTEM] * count for _ in range(count)]
    lanes = [[0] * count for _ in range(count)]
    known = [[False] * count for _ in range(count)]
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if i == j:
                levels[i][j], known[i][j] = INTERNAL, True
            elif hit := re.fullmatch(r"NV(\d{1,2})", cell):
                lanes[i][j] = int(hit[1])
                levels[i][j] = NODE if numa[i] == numa[j] and numa[i] >= 0 else SYSTEM
            elif cell in _WORDS:
                levels[i][j], known[i][j] = _WORDS[cell], True
            else:
                remedy = f"X on the diagonal, else NV<n> or one of {' '.join(_WORDS)}"
                raise _bad(source, f'cell GPU{i}/GPU{j} of the matrix is "{cell}"', remedy)
    for i in range(count):
        for j in range(count):
            if (levels[i][j], lanes[i][j]) != (levels[j][i], lanes[j][i]):
                raise _bad(source, f"the matrix differs between GPU{i}/GPU{j} and GPU{j}/GPU{i}", "a symmetric table")
    _tighten(levels, known)
    nodes = max(by_node, default=-1) + 1
    return Topology(
        numa=tuple(numa),
        cpus=cpus or tuple(by_node.get(node, "") for node in range(nodes)),
        levels=tuple(map(tuple, levels)),
        lanes=tuple(map(tuple, lanes)),
        switched=switched,
    )


def _bad(source: str, what: str, expected: str) -> ConfigError:
    return ConfigError(f"{source}: {what}", expected, "correct the topology; see the built-in profiles for examples")


def _switch_paths(spec: TopologySpec, source: str) -> dict[int, tuple[int, ...]]:
    """GPU index -> (NUMA node, host bridge, switch, switch below it, ...)."""
    paths: dict[int, tuple[int, ...]] = {}
    serial = 0

    def walk(items: Sequence[Any], path: tuple[int, ...]) -> None:
        nonlocal serial
        if len(path) > 10:
            raise _bad(source, "PCI switches are nested more than 8 deep", "at most 8 switches on the way to a GPU")
        for item in items:
            if isinstance(item, list):
                serial += 1
                walk(item, (*path, serial))
            elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < MAX_GPUS:
                if item in paths:
                    raise _bad(source, f"GPU {item} stands twice under pcie", "each GPU in one place")
                paths[item] = path
            else:
                raise _bad(source, f"{item!r:.60} under pcie", f"a GPU index (0-{MAX_GPUS - 1}) or a list for a switch")

    for bridge in spec.pcie:
        serial += 1
        walk(bridge.gpus, (bridge.numa, serial))
    return paths


def _ancestor_level(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """PCI level of two GPUs by their paths (NVML: SINGLE one switch, MULTIPLE several, HOSTBRIDGE, NODE, SYSTEM)."""
    if a[0] != b[0]:
        return SYSTEM
    if a[1] != b[1]:
        return NODE
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if common == 2:
        return HOSTBRIDGE
    return SINGLE if len(a) == len(b) == common else MULTIPLE


def _board_pairs(boards: list[list[int]], count: int, source: str) -> list[tuple[int, int]]:
    for board in boards:
        if any(gpu >= count for gpu in board):
            raise _bad(source, f"board {board} names a GPU that pcie does not have", f"GPUs 0-{count - 1}")
    return [(a, b) for board in boards for a in board for b in board if a < b]


def _lanes(spec: NvlinkSpec, count: int, source: str) -> tuple[tuple[int, ...], ...]:
    if spec.switched and spec.pairs:
        raise _bad(source, "nvlink has both switched and pairs", "one of them")
    lanes = [[0] * count for _ in range(count)]
    for a, b, number in spec.pairs:
        if a == b or max(a, b) >= count:
            raise _bad(source, f"NVLink pair [{a}, {b}]", f"two different GPUs of 0-{count - 1}")
        if lanes[a][b]:
            raise _bad(source, f"NVLink pair [{a}, {b}] stands twice", "one row for each pair")
        lanes[a][b] = lanes[b][a] = number
    return tuple(map(tuple, lanes))


def _matrix_cells(text: str, source: str) -> tuple[list[list[str]], list[int], dict[int, str]]:
    """Cells between GPUs, the NUMA node of each GPU (-1 unknown), and the CPUs of each NUMA node."""
    clean = re.sub(r"\x1b\[[0-9;]*m", "", text)  # nvidia-smi underlines the header on a terminal
    lines = [line for line in clean.splitlines() if line.strip()]
    header = next((i for i, line in enumerate(lines) if "GPU0" in line.split()), None)
    if header is None:
        raise _bad(source, "no header line with GPU0", "an `nvidia-smi topo -m` table")
    devices = re.findall(r"GPU\d+|NIC\d+|mlx\d+_\d+|\bNVSw\w*", lines[header])
    count = sum(name.startswith("GPU") for name in devices)
    if not 0 < count <= MAX_GPUS:
        raise _bad(source, f"{count} GPUs in the header", f"1 to {MAX_GPUS}")
    rows: dict[int, list[str]] = {}
    for line in lines[header + 1 :]:
        cells = line.split()
        if hit := re.fullmatch(r"GPU(\d{1,3})", cells[0]):
            rows[int(hit[1])] = cells[1:]
    if sorted(rows) != list(range(count)) or any(len(cells) < count for cells in rows.values()):
        raise _bad(source, f"rows for the GPUs {sorted(rows)}", f"a full row of cells for each of the {count} GPUs")
    columns = [i for i, name in enumerate(devices) if name.startswith("GPU")]
    numa, by_node = [], dict[int, str]()
    for i in range(count):
        if len(rows[i]) < len(devices):
            raise _bad(source, f"row GPU{i} has {len(rows[i])} cells", f"{len(devices)}, one for each column")
        cpus, node = _affinity(rows[i][len(devices) :])
        numa.append(node)
        if node >= 0:
            by_node.setdefault(node, cpus)
    return [[rows[i][column] for column in columns] for i in range(count)], numa, by_node


def _affinity(cells: list[str]) -> tuple[str, int]:
    """CPU list and NUMA node from the cells after the matrix: ``0-19,40-59  0  N/A``."""
    cpus = cells[0] if cells and re.fullmatch(r"[\d,-]+", cells[0]) else ""
    node = cells[1].split("-")[0].split(",")[0] if len(cells) > 1 else ""
    return cpus, int(node) if node.isdigit() and int(node) < MAX_NUMA else -1


def _tighten(levels: list[list[int]], known: list[list[bool]]) -> None:
    size = range(len(levels))
    for via in size:
        for i in size:
            for j in size:
                if not known[i][j] and known[i][via] and known[via][j]:
                    levels[i][j] = min(levels[i][j], max(levels[i][via], levels[via][j]))


def _repeat_cpus(cpus: tuple[str, ...], boxes: int) -> tuple[str, ...]:
    """The CPU lists of ``boxes`` boxes in a row: each box's CPUs follow those of the box before."""
    step = max((int(number) for text in cpus for number in re.findall(r"\d+", text)), default=-1) + 1

    def shifted(text: str, by: int) -> str:
        return re.sub(r"\d+", lambda hit: str(int(hit[0]) + by), text)

    return tuple(shifted(text, box * step) for box in range(boxes) for text in cpus)
