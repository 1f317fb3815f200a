"""The feature gates of NVIDIA's DRA driver: which there are, what each does here, and which exclude each other.

A gate that would do something that kgpu does not do yet is refused when it is turned on; one that changes nothing of
what a node publishes is told. Nothing is taken without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.dra_parameters import MPS_GATE, TIME_SLICING_GATE
from kgpu.formats.go_flags import read_bool

DYNAMIC_MIG: Final = "DynamicMIG"
HEALTH_CHECK: Final = "NVMLDeviceHealthCheck"
_PASSTHROUGH: Final = "PassthroughSupport"
_DNS_NAMES: Final = "IMEXDaemonsWithDNSNames"
_DOMAIN: Final = "it is about ComputeDomains, of which nothing is published"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraGate:
    """One gate. ``unbuilt`` is why it can't be turned on yet; ``idle`` is why it changes nothing here."""

    name: str
    default: bool = False
    about: str = ""
    unbuilt: str = ""
    idle: str = ""


GATES: Final = (
    DraGate(name=DYNAMIC_MIG, about="every slice that can be made is a device"),
    DraGate(name=HEALTH_CHECK, about="devices that health does not watch are told by a taint"),
    DraGate(name=TIME_SLICING_GATE, about="claims may set the time slice of their GPUs"),
    DraGate(name=MPS_GATE, about="claims may have an MPS control daemon for their devices"),
    DraGate(name=_PASSTHROUGH, unbuilt="no device is published for virtual machines yet"),
    DraGate(name="DeviceMetadata", unbuilt="it is about devices for virtual machines, which are not published yet"),
    DraGate(name=_DNS_NAMES, default=True, idle=_DOMAIN),
    DraGate(name="ComputeDomainCliques", default=True, idle=_DOMAIN),
    DraGate(name="CrashOnNVLinkFabricErrors", default=True, idle=_DOMAIN),
)
_EXCLUDE: Final = (
    (DYNAMIC_MIG, _PASSTHROUGH), (DYNAMIC_MIG, HEALTH_CHECK), (DYNAMIC_MIG, MPS_GATE),
    (_PASSTHROUGH, HEALTH_CHECK),
)  # fmt: skip
_NEED: Final = (("DeviceMetadata", _PASSTHROUGH), ("ComputeDomainCliques", _DNS_NAMES))
_WHERE: Final = "--feature-gates"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraGates:
    """All gates by name, what is to be told about those that were given, and which were turned on by name."""

    enabled: Mapping[str, bool]
    notes: tuple[str, ...] = ()
    given_on: frozenset[str] = frozenset()

    @property
    def dynamic_mig(self) -> bool:
        """Whether every slice that can be made is a device."""
        return self.enabled[DYNAMIC_MIG]

    @property
    def health_check(self) -> bool:
        """Whether devices that nobody watches are told."""
        return self.enabled[HEALTH_CHECK]

    @property
    def on(self) -> frozenset[str]:
        """Those that are on."""
        return frozenset(name for name, enabled in self.enabled.items() if enabled)


def read_gates(text: str) -> DraGates:
    """From ``DynamicMIG=true,MPSSupport=false``. Raises ConfigError."""
    given: dict[str, bool] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, value = _read(word)
        if given.setdefault(name, value) != value:
            raise ConfigError(f"{_WHERE} has {name} as true and as false", "each gate once", "leave one of them out")
    enabled = {gate.name: given.get(gate.name, gate.default) for gate in GATES}
    _check(enabled)
    for gate in GATES:
        if enabled[gate.name] and gate.unbuilt:
            raise ConfigError(f"{_WHERE}: {gate.name} can't be turned on: {gate.unbuilt}", f"{gate.name}=false",
                              "leave it out")  # fmt: skip
    idle = (gate for gate in GATES if gate.idle and gate.name in given)
    notes = tuple(f"{_WHERE}: {gate.name} changes nothing here: {gate.idle}" for gate in idle)
    return DraGates(enabled=enabled, notes=notes, given_on=frozenset(name for name, on in given.items() if on))


def _read(word: str) -> tuple[str, bool]:
    name, equals, value = (part.strip() for part in word.partition("="))
    known = [gate.name for gate in GATES]
    if name not in known:
        hint = did_you_mean(name, known)
        what = f'{_WHERE}: there is no gate "{name}"' + (f"; {hint}" if hint else "")
        raise ConfigError(what, f"one of: {', '.join(known)}", "correct its name, or leave it out")
    if not equals or not value:
        raise ConfigError(f"{_WHERE}: {name} has no value", f"{name}=true or {name}=false", "give it one")
    return name, read_bool(value, f"{_WHERE}: {name}")


def _check(enabled: Mapping[str, bool]) -> None:
    for one, other in _EXCLUDE:
        if enabled[one] and enabled[other]:
            raise ConfigError(f"{_WHERE}: {one} and {other} exclude each other", "one of them", "turn one of them off")
    for one, other in _NEED:
        if enabled[one] and not enabled[other]:
            raise ConfigError(f"{_WHERE}: {one} needs {other}", "both or none", f"turn {other} on, or {one} off")
