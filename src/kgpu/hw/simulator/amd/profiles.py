"""Profiles of simulated AMD nodes: YAML files that name the models, where they sit, and which are joined by XGMI.

As strict as the profiles of NVIDIA nodes, and read by the same decoder. A file says ``vendor: amd``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from kgpu.base import typed
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.amd_gpu_metrics import TABLES
from kgpu.hw.simulator.profiles import (
    BusId,
    Celsius,
    DmiNames,
    Mhz,
    Mib,
    Name,
    Watts,
    bus_id,
    convert,
    decode,
    how_many,
    in_order,
    merge,
    repeated,
)

MAX_GPUS: Final = 64
NO_HIVE: Final = -1

U16 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Mode = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9]{3,5}$")]
Parts = Annotated[int, msgspec.Meta(ge=1, le=8)]


class _StrictAmd(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of every section: unknown keys are errors."""


class AmdPci(_StrictAmd, frozen=True, kw_only=True):
    """Ids and 24-bit class; generation and width of the link."""

    device: U16
    subsystem: U16 = 0
    pci_class: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)] = msgspec.field(name="class", default=0x038000)
    gen: Annotated[int, msgspec.Meta(ge=1, le=7)] = 4
    width: Annotated[int, msgspec.Meta(ge=1, le=32)] = 16


class AmdPower(_StrictAmd, frozen=True, kw_only=True):
    """The limit and the idle draw; W."""

    limit: Watts
    idle: Watts


class AmdTemperature(_StrictAmd, frozen=True, kw_only=True):
    """Idle values and the critical one."""

    idle: Celsius
    critical: Celsius
    memory_idle: Celsius


class AmdClocks(_StrictAmd, frozen=True, kw_only=True):
    """Highest clocks, and the idle one of the shaders; MHz."""

    graphics: Mhz
    memory: Mhz
    idle_graphics: Mhz


class AmdModel(_StrictAmd, frozen=True, kw_only=True):
    """One GPU model. ``compute`` and ``memory`` are the modes that it can be cut by, with the number of parts; the
    first is that of a new GPU, and none means that it can't be cut.
    """

    name: Name
    pci: AmdPci
    kfd_name: Name
    kfd_version: Annotated[int, msgspec.Meta(ge=10000, lt=1_000_000)]
    simds: Count
    simds_per_cu: Annotated[int, msgspec.Meta(ge=1, le=8)] = 4
    vram_mib: Mib
    gtt_mib: Mib
    xgmi_mb_per_s: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)] = 0
    power_w: AmdPower
    temperature_c: AmdTemperature
    clocks_mhz: AmdClocks
    gpu_metrics: str
    ras: bool = True
    compute: dict[Mode, Parts] = {}
    memory: dict[Mode, Parts] = {}
    vbios: Annotated[str, msgspec.Meta(max_length=31)] = ""


class AmdGroup(_StrictAmd, frozen=True, kw_only=True):
    """GPUs of one model on one NUMA node (-1: none), in one hive of XGMI (-1: none)."""

    model: str
    pci: Annotated[list[BusId], msgspec.Meta(min_length=1, max_length=MAX_GPUS)]
    numa: Annotated[int, msgspec.Meta(ge=-1, lt=64)] = -1
    hive: Annotated[int, msgspec.Meta(ge=-1, lt=64)] = NO_HIVE


class AmdDriver(_StrictAmd, frozen=True, kw_only=True):
    """The driver's version; "" for the kernel's own, which says none."""

    version: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.+-]{0,30}$")] = ""


class _AmdFile(_StrictAmd, frozen=True, kw_only=True):
    vendor: Literal["amd"] = "amd"
    title: str = ""
    machine: DmiNames
    driver: AmdDriver = AmdDriver()
    models: dict[str, dict[str, Any]] = {}
    numa: Annotated[list[str], msgspec.Meta(min_length=1, max_length=64)]
    gpus: Annotated[list[AmdGroup], msgspec.Meta(min_length=1, max_length=MAX_GPUS)]


class AmdGpu(_StrictAmd, frozen=True, kw_only=True):
    """One GPU of a node."""

    model: AmdModel
    bus: str
    numa: int
    hive: int


class AmdProfile(_StrictAmd, frozen=True, kw_only=True):
    """A whole simulated node; ``numa`` has the CPUs of each NUMA node."""

    name: str
    title: str
    machine: DmiNames
    driver: AmdDriver
    numa: tuple[str, ...]
    gpus: tuple[AmdGpu, ...]


def names() -> tuple[str, ...]:
    """The built-in profiles, sorted."""
    folder = resources.files("kgpu.hw.simulator.amd") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def text_of(name: str) -> str:
    """The text of a built-in profile."""
    return (resources.files("kgpu.hw.simulator.amd") / "profiles" / f"{name}.yaml").read_text()


def parse(text: str, *, name: str, source: str, gpus: int | None = None) -> AmdProfile:
    """A profile from its text, with its first ``gpus`` GPUs, or the box repeated. Raises ConfigError."""
    raw = decode(text, _AmdFile, source=source)
    models = {**_builtin_models(), **raw.models}
    cards = [
        AmdGpu(model=_model(group.model, models, source), bus=bus_id(address), numa=group.numa, hive=group.hive)
        for group in raw.gpus
        for address in group.pci
    ]
    in_order([card.bus for card in cards], source)
    for card in cards:
        if card.numa >= len(raw.numa):
            raise ConfigError(
                f"{source}: GPU {card.bus} is on NUMA node {card.numa}", f"-1 to {len(raw.numa) - 1}", "correct it"
            )
    count = how_many(len(cards) if gpus is None else gpus, MAX_GPUS)
    return AmdProfile(
        name=name,
        title=raw.title,
        machine=raw.machine,
        driver=raw.driver,
        numa=tuple(raw.numa),
        gpus=tuple(_resized(cards, count)),
    )


def _resized(cards: list[AmdGpu], count: int) -> list[AmdGpu]:
    """The first ones, or the box repeated at PCI domains of its own."""
    found = []
    for position, box, bus in repeated([card.bus for card in cards], count):
        card = cards[position]
        hive = card.hive if card.hive == NO_HIVE else card.hive + 64 * box
        found.append(msgspec.structs.replace(card, bus=bus, hive=hive))
    return found


def _model(name: str, models: Mapping[str, dict[str, Any]], source: str) -> AmdModel:
    merged: dict[str, Any] = {}
    followed: list[str] = []
    wanted: str | None = name
    while wanted is not None:
        if wanted not in models or wanted in followed:
            hint = did_you_mean(wanted, models)
            raise ConfigError(
                f'{source}: no model "{wanted:.80}"{"; " if hint else ""}{hint}',
                f"one of: {', '.join(models)}",
                "take a known one, and bases that end",
            )
        followed.append(wanted)
        entry = dict(models[wanted])
        base = entry.pop("base", None)
        merged = merge(entry, merged)
        wanted = None if base is None else str(base)
    model = convert(merged, AmdModel, source=f"{source}: model {name}")
    if metrics_version(model) not in TABLES:
        known = ", ".join(f"{form}.{content}" for form, content in TABLES)
        raise ConfigError(
            f"{source}: model {name} has gpu_metrics {model.gpu_metrics:.20}", f"one of: {known}", "take one of them"
        )
    return model


def metrics_version(model: AmdModel) -> tuple[int, int]:
    """The version of its ``gpu_metrics``; (0, 0) for what is none."""
    form, _, content = model.gpu_metrics.partition(".")
    return (int(form), int(content)) if form.isdecimal() and content.isdecimal() else (0, 0)


def load(profile: str, *, gpus: int | None = None) -> AmdProfile:
    """A built-in profile. Raises ConfigError."""
    return parse(text_of(profile), name=profile, source=f"profile {profile}", gpus=gpus)


@functools.cache
def _builtin_models() -> dict[str, dict[str, Any]]:
    text = (resources.files("kgpu.hw.simulator.amd") / "models.yaml").read_text()
    return typed.convert(yaml.load(text, yaml.CSafeLoader), dict[str, dict[str, Any]])
