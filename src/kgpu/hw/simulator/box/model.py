"""Profiles of simulated nodes with Gaudi accelerators or Intel GPUs: YAML files with the models and where they sit.

As strict as the profiles of other vendors, and read by the same decoder. A file says ``vendor: gaudi`` or ``intel``.
"""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any, Final, Literal

import msgspec

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.simulator.profiles import (
    BusId,
    Celsius,
    DmiNames,
    Mib,
    Name,
    Watts,
    bus_id,
    convert,
    decode,
    how_many,
    in_order,
    repeated,
)

MAX_CARDS: Final = 64
U16 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Clock = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class _StrictCard(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of every section: unknown keys are errors."""


class CardPower(_StrictCard, frozen=True, kw_only=True):
    """The limit and the idle draw; W."""

    limit: Watts
    idle: Watts


class CardTemperature(_StrictCard, frozen=True, kw_only=True):
    """The idle value and the critical one."""

    idle: Celsius
    critical: Celsius


class CardClock(_StrictCard, frozen=True, kw_only=True):
    """The idle clock and the highest; MHz."""

    idle: Clock
    highest: Clock


class CardModel(_StrictCard, frozen=True, kw_only=True):
    """One model. ``family`` is what Gaudi's driver calls its type; ``gen`` and ``width`` are of its PCIe link."""

    name: Name
    family: Name
    device: U16
    pci_class: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)] = msgspec.field(name="class")
    gen: Annotated[int, msgspec.Meta(ge=1, le=7)] = 4
    width: Annotated[int, msgspec.Meta(ge=1, le=32)] = 16
    memory_mib: Mib
    power_w: CardPower
    temperature_c: CardTemperature
    clock_mhz: CardClock


class CardGroup(_StrictCard, frozen=True, kw_only=True):
    """Cards of one model on one NUMA node (-1: none)."""

    model: str
    pci: Annotated[list[BusId], msgspec.Meta(min_length=1, max_length=MAX_CARDS)]
    numa: Annotated[int, msgspec.Meta(ge=-1, lt=64)] = -1


class BoxDriver(_StrictCard, frozen=True, kw_only=True):
    """The kernel module, and its version; "" for one of the kernel's own, which says none."""

    module: Literal["habanalabs", "i915", "xe"]
    version: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.+-]{0,30}$")] = ""


class _BoxFile(_StrictCard, frozen=True, kw_only=True):
    vendor: Literal["gaudi", "intel"]
    title: str = ""
    machine: DmiNames
    driver: BoxDriver
    numa: Annotated[list[str], msgspec.Meta(min_length=1, max_length=64)]
    models: dict[str, dict[str, Any]]
    gpus: Annotated[list[CardGroup], msgspec.Meta(min_length=1, max_length=MAX_CARDS)]


class Card(_StrictCard, frozen=True, kw_only=True):
    """One card of a node."""

    model: CardModel
    bus: str
    numa: int


class BoxProfile(_StrictCard, frozen=True, kw_only=True):
    """A whole simulated node; ``numa`` has the CPUs of each NUMA node."""

    vendor: str
    name: str
    title: str
    machine: DmiNames
    driver: BoxDriver
    numa: tuple[str, ...]
    gpus: tuple[Card, ...]


def names() -> tuple[str, ...]:
    """The built-in profiles, sorted."""
    folder = resources.files("kgpu.hw.simulator.box") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def text_of(name: str) -> str:
    """The text of a built-in profile."""
    return (resources.files("kgpu.hw.simulator.box") / "profiles" / f"{name}.yaml").read_text()


def parse(text: str, *, name: str, source: str, gpus: int | None = None) -> BoxProfile:
    """A profile from its text, with its first ``gpus`` cards, or the box repeated. Raises ConfigError."""
    raw = decode(text, _BoxFile, source=source)
    models = {key: convert(about, CardModel, source=f"{source}: model {key:.40}") for key, about in raw.models.items()}
    cards = [
        Card(model=_model(group.model, models, source), bus=bus_id(address), numa=group.numa)
        for group in raw.gpus
        for address in group.pci
    ]
    in_order([card.bus for card in cards], source)
    if any(card.numa >= len(raw.numa) for card in cards):
        raise ConfigError(
            f"{source}: a card on a NUMA node that is not there", f"-1 to {len(raw.numa) - 1}", "correct it"
        )
    count = how_many(len(cards) if gpus is None else gpus, MAX_CARDS)
    placed = repeated([card.bus for card in cards], count)
    return BoxProfile(
        vendor=raw.vendor, name=name, title=raw.title, machine=raw.machine, driver=raw.driver, numa=tuple(raw.numa),
        gpus=tuple(msgspec.structs.replace(cards[position], bus=bus) for position, _, bus in placed),
    )  # fmt: skip


def _model(name: str, models: dict[str, CardModel], source: str) -> CardModel:
    if name not in models:
        hint = did_you_mean(name, models)
        raise ConfigError(
            f'{source}: no model "{name:.80}"{"; " if hint else ""}{hint}', f"one of: {', '.join(models)}", "correct it"
        )
    return models[name]
