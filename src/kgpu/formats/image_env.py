"""What a container asks of a GPU toolkit by its environment and mounts, as the replaced programs understand it.

Reads only: who may have what is decided elsewhere. The environment is the image's and the pod's merged, so a request
that nobody wrote on purpose (images set ``NVIDIA_VISIBLE_DEVICES=all``) looks like any other. Words are bounded, since
whoever made the image chose them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names

ALL: Final = "all"
NONE: Final = "none"
VOID: Final = "void"
ENABLED: Final = "enabled"
CAPABILITIES: Final = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEFAULT_CAPABILITIES: Final = frozenset({"compute", "utility"})
"""What an image that names none gets from the replaced programs, where they look at the variable at all."""

IMPLIED: Final = {"video": frozenset({"compute"})}
"""What a capability does not work without: decoders and encoders are used through CUDA."""

MAX_WORDS: Final = 1024
MAX_WORD: Final = 512

# Exact value "enabled" asks for the device `all` of the kind.
_GATED: Final = (
    (names.ENV_GDS, names.CDI_GDS_KIND),
    (names.ENV_MOFED, names.CDI_MOFED_KIND),
    (names.ENV_GDRCOPY, names.CDI_GDRCOPY_KIND),
    (names.ENV_NVSWITCH, names.CDI_NVSWITCH_KIND),
)
_TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_NULL_DEVICE: Final = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Which devices are asked for. Nothing at all: all False and no ids.

    ``all`` beside ids means all. ``none`` asks for the driver without a GPU. ``ids`` are as written: indices, ``g:m``,
    UUIDs or qualified CDI names, each once.
    """

    all: bool = False
    none: bool = False
    ids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.all or self.none or bool(self.ids)


def parse_devices(text: str) -> Visible:
    """The value of ``NVIDIA_VISIBLE_DEVICES`` or of an annotation: words between commas. Raises ConfigError."""
    words = [word for word in split(text, names.ENV_VISIBLE_DEVICES) if word != VOID]
    if ALL in words:
        return Visible(all=True)
    ids = tuple(dict.fromkeys(word for word in words if word != NONE))
    return Visible(none=not ids and NONE in words, ids=ids)


def parse_capabilities(text: str, *, supported: Collection[str] = CAPABILITIES) -> frozenset[str]:
    """The capabilities named by ``NVIDIA_DRIVER_CAPABILITIES``; ``all`` and "" are what is supported and the default.

    Raises ConfigError for one that is not supported, as the replaced programs refuse such a container.
    """
    words = split(text, names.ENV_DRIVER_CAPABILITIES)
    if not words:
        return DEFAULT_CAPABILITIES & frozenset(supported)
    if ALL in words:
        return frozenset(supported)
    for word in words:
        if word not in supported:
            hint = did_you_mean(word, supported)
            raise ConfigError(
                f'{names.ENV_DRIVER_CAPABILITIES} has "{word[:80]}", which this node does not offer',
                f"some of {', '.join(sorted(supported))}, or {ALL}",
                hint or f"correct {names.ENV_DRIVER_CAPABILITIES} in the image or the pod",
            )
    return frozenset(words).union(*(IMPLIED.get(word, ()) for word in words))


def split(text: str, what: str) -> tuple[str, ...]:
    """The words between commas, trimmed, empty ones left out. Raises ConfigError: too many, or one too long."""
    words = tuple(word.strip() for word in text.split(",", MAX_WORDS) if word.strip())
    if len(words) > MAX_WORDS or any(len(word) > MAX_WORD for word in words):
        raise ConfigError(
            f"{what} is too long: {len(text)} characters",
            f"at most {MAX_WORDS} words of {MAX_WORD} characters",
            f"shorten {what}",
        )
    return words


@dataclass(frozen=True, slots=True)
class ImageEnv:
    """The variables of a container that concern a GPU toolkit."""

    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, env: Iterable[str]) -> ImageEnv:
        """From items ``NAME=value``; of a name that is there twice the last counts, as the runtime has it."""
        pairs = (item.partition("=") for item in env)
        return cls({name: value for name, sign, value in pairs if sign})

    @property
    def legacy(self) -> bool:
        """Whether it is a CUDA image of the time before images said what they require."""
        return bool(self.variables.get(names.ENV_CUDA_VERSION)) and not self.variables.get(names.ENV_REQUIRE_CUDA)

    def visible_devices(self, *, legacy_all: bool = False, instead: Collection[str] = ()) -> Visible:
        """What ``NVIDIA_VISIBLE_DEVICES`` asks for. Raises ConfigError.

        ``instead`` are variables that replace it where one of them is set (``swarm-resource``). With ``legacy_all`` a
        legacy image that says nothing asks for all.
        """
        swarm = [self.variables[name] for name in instead if self.variables.get(name)]
        if swarm:
            return parse_devices(",".join(swarm))
        text = self.variables.get(names.ENV_VISIBLE_DEVICES)
        if text is None and legacy_all and self.legacy:
            return Visible(all=True)
        return parse_devices(text or "")

    def capabilities(self, *, supported: Collection[str] = CAPABILITIES) -> frozenset[str] | None:
        """What ``NVIDIA_DRIVER_CAPABILITIES`` asks for; None when it says nothing. Raises ConfigError."""
        text = self.variables.get(names.ENV_DRIVER_CAPABILITIES, "")
        if not text.strip():
            return None
        return parse_capabilities(text, supported=supported)

    def requirements(self) -> dict[str, str]:
        """Variable to expression, in the order of names; empty when they are switched off.

        A legacy image requires the CUDA that it was made with. Requirements of Jetson boards are not a driver's.
        """
        if self.variables.get(names.ENV_DISABLE_REQUIRE) in _TRUE:
            return {}
        requirements = {
            name: text.strip()
            for name, text in sorted(self.variables.items())
            if name.startswith(names.ENV_REQUIRE_PREFIX)
            and not name.startswith(names.ENV_REQUIRE_JETPACK)
            and text.strip()
        }
        made_with = self.variables.get(names.ENV_CUDA_VERSION, "")
        if self.legacy:
            parts = made_with.split(".")[:2]
            if all(part.isascii() and part.isdecimal() for part in parts):
                requirements[names.ENV_CUDA_VERSION] = f"cuda>={'.'.join(parts)}"
        return requirements

    def extra_devices(self) -> tuple[str, ...]:
        """Qualified CDI names that other variables ask for: storage, network, switches, IMEX channels.

        Raises ConfigError. All IMEX channels can't be asked for by a variable.
        """
        devices = [f"{kind}={ALL}" for name, kind in _GATED if self.variables.get(name) == ENABLED]
        channels = split(self.variables.get(names.ENV_IMEX_CHANNELS, ""), names.ENV_IMEX_CHANNELS)
        requested = (channel for channel in channels if channel not in {ALL, VOID, NONE})
        return (*devices, *(f"{names.CDI_IMEX_KIND}={channel}" for channel in requested))


def devices_of_mounts(mounts: Iterable[tuple[str, str]]) -> Visible:
    """What mounts of ``/dev/null`` at names of devices ask for; ``mounts`` are (source, destination).

    ``cdi/<vendor>/<class>/<device>`` and ``cdi/<vendor>/<class>=<device>`` are qualified names, ``imex/<n>`` a channel.
    """
    prefix = f"{names.VOLUME_MOUNTS_DIR}/"
    devices: list[str] = []
    for source, destination in mounts:
        if source != _NULL_DEVICE or not destination.startswith(prefix) or len(devices) >= MAX_WORDS:
            continue
        kind, _, rest = destination.removeprefix(prefix).partition("/")
        if kind == "imex" and rest:
            devices.append(f"{names.CDI_IMEX_KIND}={rest}")
        elif kind == "cdi" and rest.count("/") == 2:
            devices.append("=".join(rest.rsplit("/", 1)))
        elif kind == "cdi" and rest.count("/") == 1 and "=" in rest:
            devices.append(rest)
        elif kind and not rest:
            devices.append(kind)
    if ALL in devices:
        return Visible(all=True)
    return Visible(ids=tuple(dict.fromkeys(word for word in devices if word not in {NONE, VOID})))
