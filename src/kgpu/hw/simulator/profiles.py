"""Profiles of simulated nodes: YAML files that name the GPU models, where they sit, and what joins them.

``load`` finds a built-in profile by name or reads a file; models come from ``models.yaml`` or from the profile itself
(``base`` builds on a known model). Input is strict: an unknown key, a wrong type or an impossible value is a
``ConfigError`` that names the place, never another exception.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

import msgspec
import yaml

from kgpu.base import typed
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.mig_geometry import GEOMETRIES
from kgpu.hw.simulator.topology import Bridge, NvlinkSpec, Topology, TopologySpec, parse_matrix, resolve

BRANDS: Final[Mapping[str, int]] = {
    "unknown": 0, "quadro": 1, "tesla": 2, "nvs": 3, "grid": 4, "geforce": 5, "titan": 6,
    "quadro-rtx": 12, "nvidia-rtx": 13, "nvidia": 14, "geforce-rtx": 15, "titan-rtx": 16,
}  # fmt: skip
ARCHITECTURES: Final[Mapping[str, int]] = {
    "kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9,
    "blackwell": 10, "rubin": 13,
}  # fmt: skip
FABRIC_STATES: Final[Mapping[str, int]] = {"not-started": 1, "in-progress": 2, "completed": 3}
MAX_BYTES: Final = 1 << 20  # of a profile or topology file
MAX_DEPTH: Final = 40  # of nested lists and mappings

U16 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Mib = Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
Mhz = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Watts = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Celsius = Annotated[int, msgspec.Meta(ge=-50, le=200)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=95, pattern=r"^[ -~]+$")]
BusId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$")]
T = TypeVar("T")


class _Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of every section: unknown keys are errors."""


class Pci(_Strict, kw_only=True, frozen=True):
    """Ids as NVML packs them (device << 16 | vendor), 24-bit class, link generation and width."""

    device: U32
    subsystem: U32 = 0
    pci_class: Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)] = msgspec.field(name="class", default=0x030200)
    gen: Annotated[int, msgspec.Meta(ge=1, le=7)] = 4
    width: Annotated[int, msgspec.Meta(ge=1, le=32)] = 16


class Memory(_Strict, kw_only=True, frozen=True):
    """Frame buffer as NVML totals it, the part the driver keeps, BAR1 (MiB), and the bus width."""

    total_mib: Mib
    reserved_mib: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 512
    bar1_mib: Mib = 256
    bus_bits: Annotated[int, msgspec.Meta(ge=32, le=65_535)] = 384


class Clocks(_Strict, kw_only=True, frozen=True):
    """Highest clocks, and the idle ones of SM/graphics and memory; MHz."""

    graphics: Mhz
    sm: Mhz
    memory: Mhz
    video: Mhz
    idle_graphics: Mhz
    idle_memory: Mhz


class Power(_Strict, kw_only=True, frozen=True):
    """Default limit, settable range, and idle draw; W."""

    limit: Watts
    min: Watts
    max: Watts
    idle: Watts


class Temperature(_Strict, kw_only=True, frozen=True):
    """Idle value and thresholds; ``memory_idle`` 0 means no memory sensor."""

    idle: Celsius
    max_operating: Celsius
    slowdown: Celsius
    shutdown: Celsius
    memory_idle: Celsius = 0


class Ecc(_Strict, kw_only=True, frozen=True):
    """Whether the model has ECC memory and whether it is on."""

    supported: bool = True
    enabled: bool = True


class NvlinkPorts(_Strict, kw_only=True, frozen=True):
    """NVLink generation, lanes of the GPU, and MB/s of one lane and direction."""

    version: Annotated[int, msgspec.Meta(ge=1, le=7)]
    links: Annotated[int, msgspec.Meta(ge=1, le=18)]
    mbps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Model(_Strict, kw_only=True, frozen=True):
    """One GPU model. ``mig`` names a geometry of ``kgpu.formats.mig_geometry``, "" when the model has no MIG;

    ``remap_banks`` are the memory banks with row remapping, 0 when the model retires pages instead.
    """

    name: Name
    brand: str
    architecture: str
    compute_capability: Annotated[str, msgspec.Meta(pattern=r"^\d{1,2}\.\d$")]
    pci: Pci
    memory: Memory
    cores: U32
    multiprocessors: U16
    clocks_mhz: Clocks
    power_w: Power
    temperature_c: Temperature
    fans: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    ecc: Ecc = Ecc()
    remap_banks: U32 = 0
    mig: str = ""
    nvlink: NvlinkPorts | None = None
    c2c_links: Annotated[int, msgspec.Meta(ge=0, le=36)] = 0
    vbios: Annotated[str, msgspec.Meta(max_length=31)] = "00.00.00.00.00"
    part_number: Annotated[str, msgspec.Meta(max_length=79)] = ""


class GpuGroup(_Strict, kw_only=True, frozen=True):
    """GPUs of one model in the driver's order, one for each PCI address."""

    model: str
    pci: Annotated[list[BusId], msgspec.Meta(min_length=1, max_length=64)]


class DmiNames(_Strict, kw_only=True, frozen=True):
    """The DMI names."""

    product: Name
    vendor: Name = "NVIDIA"


class DriverVersions(_Strict, kw_only=True, frozen=True):
    """Driver version and the newest CUDA it serves."""

    version: Annotated[str, msgspec.Meta(pattern=r"^\d{2,4}\.\d{1,4}(\.\d{1,4})?$")]
    cuda: Annotated[str, msgspec.Meta(pattern=r"^\d{1,2}\.\d$")]


class Fabric(_Strict, kw_only=True, frozen=True):
    """The NVLink fabric as the fabric manager left it; an all-zero ``cluster`` is a single node."""

    state: str = "completed"
    cluster: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")] = (
        "00000000-0000-0000-0000-000000000000"
    )
    clique: U32 = 0


class _ProfileFile(_Strict, kw_only=True, frozen=True):
    """A profile as written."""

    title: str = ""
    machine: DmiNames
    driver: DriverVersions
    models: dict[str, dict[str, Any]] = {}
    gpus: Annotated[list[GpuGroup], msgspec.Meta(min_length=1, max_length=64)]
    nvswitches: Annotated[list[BusId], msgspec.Meta(max_length=32)] = []
    fabric: Fabric | None = None
    imex_channels: Annotated[int, msgspec.Meta(ge=0, le=2048)] = 0
    topology: TopologySpec | None = None


class ProfileGpu(_Strict, kw_only=True, frozen=True):
    """One GPU of a node: its model and PCI address (``0000:1b:00.0``)."""

    model: Model
    bus: str


class Profile(_Strict, kw_only=True, frozen=True):
    """A whole simulated node, resolved and checked: what ``create_root`` makes."""

    name: str
    title: str
    machine: DmiNames
    driver: DriverVersions
    gpus: tuple[ProfileGpu, ...]
    nvswitches: tuple[str, ...]
    fabric: Fabric | None
    imex_channels: int
    topology: Topology


def names() -> tuple[str, ...]:
    """The built-in profiles, sorted."""
    folder = resources.files("kgpu.hw.simulator") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load(profile: str, *, gpus: int | None = None, topology: Path | None = None) -> Profile:
    """A built-in profile, or the file that ``profile`` names (a path with a slash or ``.yaml``).

    ``gpus`` (1-64) cuts or extends it, ``topology`` is a file in ``topology.TopologySpec``'s form or an
    ``nvidia-smi topo -m`` text; without ``gpus`` the node then has as many GPUs as that file. Raises ConfigError.
    """
    if is_file(profile):
        text, source, name = read(Path(profile)), profile, Path(profile).stem
    elif profile in names():
        text = (resources.files("kgpu.hw.simulator") / "profiles" / f"{profile}.yaml").read_text()
        source, name = f"profile {profile}", profile
    else:
        raise unknown_profile(profile, names())
    base = parse(text, name=name, source=source)
    if gpus is not None:
        how_many(gpus, 64)
    if topology is not None:
        shape = parse_topology(read(topology), source=str(topology))
        if gpus is None and shape.count != len(base.gpus):
            gpus = shape.count
        base = msgspec.structs.replace(base, topology=shape)
    return resized(base, gpus or len(base.gpus), source=source)


def parse(text: str, *, name: str, source: str) -> Profile:
    """A profile from its YAML text. Raises ConfigError naming ``source``; reads nothing but the built-in models."""
    raw = decode(text, _ProfileFile, source=source)
    models = {**_builtin_models(), **raw.models}
    cards = []
    for group in raw.gpus:
        model = resolve_model(group.model, models, source=source)
        cards += [ProfileGpu(model=model, bus=bus_id(address)) for address in group.pci]
    buses = [card.bus for card in cards]
    for bus in buses:
        if buses.count(bus) > 1:
            raise ConfigError(f"{source}: two GPUs at the PCI address {bus}", "an address for each GPU", "change one")
    shape = TopologySpec(pcie=[Bridge(gpus=list(range(len(cards))))], nvlink=NvlinkSpec())
    if len(cards) > 64:
        raise ConfigError(f"{source}: {len(cards)} GPUs", "1 to 64", "take some out")
    if buses != sorted(buses, key=lambda bus: (int(bus.split(":")[0], 16), bus.split(":", 1)[1])):
        order = "PCI addresses in ascending order, as the driver enumerates them"
        raise ConfigError(f"{source}: the GPUs are not in PCI order", order, "reorder them, and the topology with them")
    if raw.fabric and raw.fabric.state not in FABRIC_STATES:
        raise _unknown(source, "fabric.state", raw.fabric.state, FABRIC_STATES)
    profile = Profile(
        name=name,
        title=raw.title,
        machine=raw.machine,
        driver=raw.driver,
        gpus=tuple(cards),
        nvswitches=tuple(map(bus_id, raw.nvswitches)),
        fabric=raw.fabric,
        imex_channels=raw.imex_channels,
        topology=resolve(raw.topology or shape, source=source),
    )
    if profile.topology.count != len(cards):
        raise ConfigError(
            f"{source}: the topology has {profile.topology.count} GPUs, the profile {len(cards)}",
            "the same number",
            "list every GPU once under topology.pcie",
        )
    return resized(profile, len(cards), source=source)


def parse_topology(text: str, *, source: str) -> Topology:
    """A topology file: YAML, or an ``nvidia-smi topo -m`` table. Raises ConfigError."""
    first = next((line for line in text.splitlines() if "GPU0" in line.split() and ":" not in line), "")
    if first:
        return parse_matrix(text, source=source)
    return resolve(decode(text, TopologySpec, source=source), source=source)


def in_order(buses: Sequence[str], source: str) -> None:
    """Raises ConfigError where the PCI addresses do not ascend."""
    if list(buses) != sorted(set(buses)):
        raise ConfigError(
            f"{source}: the PCI addresses are not in ascending order, or one is there twice",
            "the order in which the driver enumerates",
            "reorder the GPUs",
        )


def how_many(count: int, most: int) -> int:
    """The number of GPUs of a node. Raises ConfigError for one that no node has."""
    if not 1 <= count <= most:
        raise ConfigError(f"a node with {count} GPUs", f"1 to {most}", "choose another number with --gpus")
    return count


def repeated(buses: Sequence[str], count: int) -> Iterator[tuple[int, int, str]]:
    """For each of ``count`` GPUs its position in a box, the box's number, and its PCI address: the box is repeated at
    PCI domains of its own.
    """
    size = len(buses)
    step = max(int(bus.split(":")[0], 16) for bus in buses) + 1
    for number in range(count):
        domain, rest = buses[number % size].split(":", 1)
        box = number // size
        yield number % size, box, f"{int(domain, 16) + box * step:04x}:{rest}"


def resized(profile: Profile, count: int, *, source: str) -> Profile:
    """The profile with ``count`` GPUs: the first ones, or the box repeated at PCI domains of its own."""
    placed = repeated([gpu.bus for gpu in profile.gpus], count)
    cards = [ProfileGpu(model=profile.gpus[position].model, bus=bus) for position, _, bus in placed]
    shape = profile.topology.resized(count)
    for i, card in enumerate(cards):
        ports = card.model.nvlink.links if card.model.nvlink else 0
        if sum(shape.lanes[i]) > ports or (shape.switched and not ports):
            wants = "lanes to NVSwitches" if shape.switched else f"{sum(shape.lanes[i])} NVLink lanes"
            raise ConfigError(
                f"{source}: GPU {i} needs {wants}, but {card.model.name} has {ports}",
                "no more lanes than the model has",
                "lower the lanes, or take a profile whose GPUs have more (dgx-1-v100 6, dgx-a100-80g 12, hgx-h100 18)",
            )
    return msgspec.structs.replace(profile, gpus=tuple(cards), topology=shape)


def resolve_model(name: str, models: Mapping[str, dict[str, Any]], *, source: str) -> Model:
    """One model by name, with ``base`` followed and sections merged key by key. Raises ConfigError."""
    chain: list[str] = []
    merged: dict[str, Any] = {}
    while True:
        if name not in models:
            raise _unknown(source, "model", name, models)
        if name in chain:
            raise ConfigError(f"{source}: model {chain[0]} is its own base", "bases that end", "remove one `base`")
        chain.append(name)
        entry = dict(models[name])
        base = entry.pop("base", None)
        merged = merge(entry, merged)
        if base is None:
            break
        if base == name and name in _builtin_models():  # a profile's model of the same name extends the built-in one
            merged = merge(_builtin_models()[name], merged)
            break
        name = str(base)
    model = convert(merged, Model, source=f"{source}: model {chain[0]}")
    for field, value, table in (("brand", model.brand, BRANDS), ("architecture", model.architecture, ARCHITECTURES)):
        if value not in table:
            raise _unknown(source, f"{field} of model {chain[0]}", value, table)
    if model.mig and model.mig not in GEOMETRIES:
        raise _unknown(source, f"mig table of model {chain[0]}", model.mig, GEOMETRIES)
    return model


def decode(text: str, into: type[T], *, source: str) -> T:
    """Strictly decode YAML. Raises ConfigError: not YAML, anchors (they can blow up), unknown keys, wrong types."""
    try:
        _check_events(text, source)
        raw = yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        where = str(error).replace("\n", " ")[:200]
        raise ConfigError(f"{source}: not valid YAML: {where}", "a YAML mapping", "correct the text there") from error
    return convert(raw, into, source=source)


def _check_events(text: str, source: str) -> None:
    """Refuse what makes a small text expensive, while it is parsed: aliases and deep nesting."""
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{source}: has a YAML alias (*name)", "plain YAML", "write the value out, or use `base`")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{source}: nested more than {MAX_DEPTH} deep", "a profile or topology", "flatten it")


def convert(raw: object, into: type[T], *, source: str) -> T:
    """Strictly convert decoded YAML. Raises ConfigError with the place and, for an unknown key, the nearest known."""
    try:
        return typed.convert(raw, into)
    except (msgspec.ValidationError, RecursionError) as error:
        message = str(error)[:300]
        hint = ""
        if "unknown field" in message:
            key = message.split("`")[1]
            hint = did_you_mean(key, _field_names(into))
        raise ConfigError(
            f"{source}: {message}{'; ' if hint else ''}{hint}",
            "the keys and types of a built-in profile",
            "correct that key; the built-in profiles (src/kgpu/hw/simulator/profiles) show every one",
        ) from error


def bus_id(text: str) -> str:
    """``00000000:1B:00.0`` or ``0000:1b:00.0`` as ``0000:1b:00.0``: lower case, domain of four digits or more."""
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


@functools.cache
def _builtin_models() -> dict[str, dict[str, Any]]:
    text = (resources.files("kgpu.hw.simulator") / "models.yaml").read_text()
    return typed.convert(yaml.load(text, yaml.CSafeLoader), dict[str, dict[str, Any]])


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``under`` with ``over`` laid over it, sections key by key."""
    out = dict(under)
    for key, value in over.items():
        below = out.get(key)
        out[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return out


def is_file(profile: str) -> bool:
    """Whether a profile is a file's path, not a name."""
    return "/" in profile or profile.endswith((".yaml", ".yml"))


def unknown_profile(profile: str, known: tuple[str, ...]) -> ConfigError:
    """The error about a name that no profile has."""
    return ConfigError(
        f'no profile is named "{profile}"; {did_you_mean(profile, known)}'.removesuffix("; "),
        f"one of: {', '.join(known)}",
        "choose one (`kgpu lab hw list`), or give the path of a profile file",
    )


def read(path: Path) -> str:
    """A profile's or topology's text. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB", "a profile or topology file", "check the path")
        return raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", "a readable text file", "check the path") from error


def _unknown(source: str, what: str, value: str, known: Mapping[str, object]) -> ConfigError:
    hint = did_you_mean(value, known)
    return ConfigError(
        f'{source}: unknown {what} "{value:.80}"{"; " if hint else ""}{hint}',
        f"one of: {', '.join(known)}",
        "take a known one",
    )


def _field_names(struct: Any) -> set[str]:
    """Every key that may stand in ``struct`` or in a section of it."""
    names: set[str] = set()
    todo, visited = [struct], set[Any]()
    while todo:
        kind = todo.pop()
        if kind in visited:
            continue
        visited.add(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            names.update(field.encode_name for field in msgspec.structs.fields(kind))
            todo += get_type_hints(kind).values()
        todo += [arg for arg in get_args(kind) if not isinstance(arg, msgspec.Meta)]
    return names
