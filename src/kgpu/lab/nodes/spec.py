"""What one simulated node is: the content of ``DIR/NAME/node.json``, and the size of the machine it pretends to be.

Data only. A spec is checked as a whole when it is read or made, so that the host never meets a wrong one; unknown keys
are errors. Sizes are those of the machines that the profiles are named after.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.base.quantity import Quantity, QuantityError
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import decode

SPEC_FILE: Final = "node.json"
CPU_PROFILE: Final = "cpu"
HOST_DRIVER, CONTAINER_DRIVER = "host", "container"
DRIVERS: Final = (HOST_DRIVER, CONTAINER_DRIVER)
"""Where a node's driver comes from."""
MAX_NODES_AT_ONCE: Final = 5000
MAX_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MIG: Final = re.compile(r"([0-9]{1,2}|all):([0-9a-z.+]+)(?:\*([1-9]))?")


@dataclass(frozen=True, slots=True)
class MachineSize:
    """A machine's size; memory in GiB, ``instance`` as the label node.kubernetes.io/instance-type has it."""

    cpus: int
    memory_gib: int
    instance: str


# Profile -> the machine it is usually found in.
MACHINES: Final = {
    CPU_PROFILE: MachineSize(16, 64, "cpu-16"),
    "a30": MachineSize(64, 512, "a30-server"),
    "dgx-1-p100": MachineSize(80, 512, "dgx-1-p100"),
    "dgx-1-v100": MachineSize(80, 512, "dgx-1-v100"),
    "dgx-a100-40g": MachineSize(256, 1024, "dgx-a100-40g"),
    "dgx-h100": MachineSize(224, 2048, "dgx-h100"),
    "dgx-a100-80g": MachineSize(256, 2048, "dgx-a100-80g"),
    "gb200": MachineSize(144, 960, "gb200-tray"),
    "geforce": MachineSize(32, 128, "geforce-workstation"),
    "hgx-b200": MachineSize(224, 4096, "hgx-b200"),
    "hgx-h100": MachineSize(224, 2048, "hgx-h100"),
    "hgx-h200": MachineSize(224, 2048, "hgx-h200"),
    "l4": MachineSize(48, 192, "g2-standard-48"),
    "l40s": MachineSize(128, 1024, "l40s-server"),
    "arc": MachineSize(32, 128, "arc-workstation"),
    "gaudi2": MachineSize(160, 1024, "gaudi2-server"),
    "gaudi3": MachineSize(256, 2048, "gaudi3-server"),
    "max1550": MachineSize(208, 1024, "max1550-server"),
    "mi210": MachineSize(256, 1024, "mi210-server"),
    "mi250x": MachineSize(128, 512, "mi250x-server"),
    "mi300x": MachineSize(384, 2304, "mi300x-server"),
    "mi325x": MachineSize(256, 3072, "mi325x-server"),
    "rx7900xtx": MachineSize(24, 64, "desktop"),
    "t4": MachineSize(48, 192, "g4dn.12xlarge"),
    "w7900": MachineSize(64, 256, "w7900-workstation"),
}
OTHER: Final = MachineSize(64, 512, "gpu-server")


class NodeTaint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A taint the node is registered with."""

    key: str
    value: str = ""
    effect: str

    def to_json(self) -> dict[str, str]:
        """As the API server has it."""
        return {"key": self.key, **({"value": self.value} if self.value else {}), "effect": self.effect}


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One simulated node. ``gpus`` None: as many as the profile has; ``mig`` rows are ``GPU:PROFILE*COUNT``.

    ``light``: its agent runs inside the host process on hardware that is only data; its pods are stand-ins.
    ``time_scale`` shortens waits that Kubernetes measures in tens of seconds (restart back-off): with 0.1 they are a
    tenth. ``driver`` is where its driver comes from: installed on the host, or in a container that the operator runs.
    """

    name: str
    profile: str
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    light: bool = False
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()
    mig: tuple[str, ...] = ()
    config: str = ""
    cpu: str = ""
    memory: str = ""
    pods: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 110
    time_scale: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    agent: bool = True
    driver: str = HOST_DRIVER

    def __post_init__(self) -> None:
        for what, expected in _problems(self):
            raise LabError(f"node {self.name!r:.80}: {what}", expected, "correct it")

    @property
    def machine(self) -> MachineSize:
        """The machine of the profile."""
        return MACHINES.get(self.profile, OTHER)

    @property
    def has_gpus(self) -> bool:
        """False for a node without accelerators."""
        return self.profile != CPU_PROFILE


def _problems(spec: NodeSpec) -> list[tuple[str, str]]:
    problems: list[tuple[str, str]] = []
    if not _NAME.fullmatch(spec.name):
        problems.append(
            (f"\"{spec.name:.80}\" can't be a node's name", "1 to 63 lower-case letters, digits and dashes")
        )
    for key, value in spec.labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            problems.append((f'label "{key:.80}={value:.80}"', "a label key and value as Kubernetes takes them"))
    for taint in spec.taints:
        if taint.effect not in _EFFECTS:
            hint = did_you_mean(taint.effect, _EFFECTS)
            problems.append((f'taint effect "{taint.effect:.40}" {hint}'.rstrip(), f"one of {', '.join(_EFFECTS)}"))
        if not _LABEL_KEY.fullmatch(taint.key) or not _LABEL_VALUE.fullmatch(taint.value):
            problems.append((f'taint "{taint.key:.80}={taint.value:.80}"', "KEY[=VALUE]:EFFECT"))
    problems += [
        (f'MIG layout "{row:.80}"', "GPU:PROFILE*COUNT, such as 0:1g.10gb*7 or all:3g.40gb*2")
        for row in spec.mig
        if not _MIG.fullmatch(row)
    ]
    for what, text in (("cpu", spec.cpu), ("memory", spec.memory)):
        try:
            if Quantity.parse(text or "1") <= Quantity.parse("0"):
                problems.append((f"{what} {text:.40}", "more than 0"))
        except QuantityError as error:
            problems.append((f"{what}: {error.reason}", "a Kubernetes quantity"))
    if spec.mig and (spec.light or not spec.has_gpus):
        problems.append(("a MIG layout", "a node with simulated GPUs that is not light"))
    if spec.driver not in DRIVERS:
        problems.append(
            (f'driver "{spec.driver:.40}" {did_you_mean(spec.driver, DRIVERS)}'.rstrip(), " or ".join(DRIVERS))
        )
    elif spec.driver == CONTAINER_DRIVER and (spec.light or not spec.has_gpus or spec.mig or spec.agent):
        problems.append(
            (
                "a driver in a container",
                "a node with GPUs that is neither light nor has MIG slices, in a lab with the operator",
            )
        )
    if not spec.has_gpus and spec.gpus is not None:
        problems.append(("a CPU node has no GPUs to count", "no number of GPUs"))
    return problems


def parse_taint(text: str) -> NodeTaint:
    """``KEY[=VALUE]:EFFECT`` as kubectl takes it. Raises LabError."""
    left, colon, effect = text.rpartition(":")
    key, _, value = left.partition("=")
    if not colon or not key:
        raise LabError(f'"{text:.80}" is not a taint', "KEY[=VALUE]:EFFECT", "for example nvidia.com/gpu:NoSchedule")
    return NodeTaint(key=key, value=value, effect=effect)


def mig_rows(spec: NodeSpec, gpus: int) -> list[tuple[int, list[str]]]:
    """GPU index and the instance profiles to make on it, in the order given."""
    by_gpu: dict[int, list[str]] = {}
    for row in spec.mig:
        match = _MIG.fullmatch(row)
        assert match is not None
        targets = range(gpus) if match[1] == "all" else [int(match[1])]
        for gpu in targets:
            by_gpu.setdefault(gpu, []).extend([match[2]] * int(match[3] or 1))
    return sorted(by_gpu.items())


def load(path: Path) -> NodeSpec:
    """The spec in a ``node.json``. Raises LabError."""
    try:
        return decode(_read(path), NodeSpec)
    except LabError as error:  # of a node that is none: which file says so
        raise LabError(f"{path}: {error.what}", error.expected, error.remedy) from error
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        unknown = re.search(r"unknown field `(.*?)`", str(error))
        hint = did_you_mean(unknown[1], NodeSpec.__struct_encode_fields__) if unknown else ""
        raise LabError(
            f"{path}: {error}{'; ' if hint else ''}{hint}",
            "a node as `kgpu lab node add` writes it",
            "remove the node and add it again",
        ) from error


def _read(path: Path) -> bytes:
    """A pipe would keep the host waiting for ever, and nobody writes so large a node."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise OSError("it is not a file")
        data = source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return data


def save(folder: Path, spec: NodeSpec) -> None:
    """Write ``folder/node.json``. Raises OSError."""
    write_atomic(folder / SPEC_FILE, msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n")


def free_names(prefix: str, count: int, existing: Sequence[str] | set[str]) -> list[str]:
    """``count`` names ``PREFIX-N`` that are not in ``existing``, N from 1 on."""
    names: list[str] = []
    used, number = set(existing), 0
    while len(names) < count:
        number += 1
        if f"{prefix}-{number}" not in used:
            names.append(f"{prefix}-{number}")
    return names


def to_builtins(spec: NodeSpec) -> dict[str, Any]:
    """As JSON-ready data."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    return fields
