"""Names of MIG profiles: parse, format, compare, and derive from what the driver reports.

The grammar and the memory rounding are go-nvlib's, because the names must match what users already write in configs and
resource requests. Every place's own spelling is made here: ``1g.10gb+me`` (configs, ``nvidia-smi``), ``1g.10gb.me``
(resource names, label keys). All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.formats.names import MIG_RESOURCE_PREFIX

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
# A GPU's memory is cut in eighths, whatever the number of compute slices.
_MEMORY_SLICES: Final = 8

_FIELDS: Final = re.compile(r"(?:([1-9][0-9]{0,2})c\.)?([1-9][0-9]{0,2})g\.([1-9][0-9]{0,3})gb", re.ASCII)
_ATTRIBUTE: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)
_GRAMMAR: Final = "[<c>c.]<g>g.<memory>gb, then optionally +attribute or -attribute: 1g.10gb, 1c.3g.40gb, 1g.10gb+me"
_REMEDY: Final = "take a name that `nvidia-smi mig -lgip` prints"


@dataclass(frozen=True, slots=True, order=True)
class MigProfile:
    """One MIG profile; equal when c, g, gb and both attribute sets are (go-nvlib's rule).

    ``c`` compute slices of the compute instance, ``g`` of the GPU instance, ``gb`` memory in GiB as the name rounds it.
    Attributes are kept sorted, so that equal profiles have one spelling.
    """

    c: int
    g: int
    gb: int
    attributes: tuple[str, ...] = ()
    negative_attributes: tuple[str, ...] = ()

    def __str__(self) -> str:
        part = "" if self.c == self.g else f"{self.c}c."
        plus = "+" + ",".join(self.attributes) if self.attributes else ""
        minus = "-" + ",".join(self.negative_attributes) if self.negative_attributes else ""
        return f"{part}{self.g}g.{self.gb}gb{plus}{minus}"

    @property
    def resource_form(self) -> str:
        """The spelling in resource names, label keys and config names: ``+`` (and ``,``) become ``.``, ``-`` stays."""
        return str(self).replace("+", ".").replace(",", ".")

    @property
    def resource_name(self) -> str:
        """The extended resource under strategy mixed, such as ``nvidia.com/mig-1g.10gb.me``."""
        return MIG_RESOURCE_PREFIX + self.resource_form

    @property
    def whole(self) -> bool:
        """True when the compute instance takes all slices of its GPU instance; only these become resources."""
        return self.c == self.g


@dataclass(frozen=True, slots=True)
class GpuInstanceKind:
    """A row of NVML's GPU_INSTANCE_PROFILE_* enumeration: compute slices and what the name's suffix says."""

    slices: int
    attributes: tuple[str, ...] = ()
    negative_attributes: tuple[str, ...] = ()


# Keyed by the NVML enumeration, which is not the id that `nvidia-smi mig -lgip` prints.
GPU_INSTANCE_KINDS: Final[Mapping[int, GpuInstanceKind]] = {
    0: GpuInstanceKind(1),
    1: GpuInstanceKind(2),
    2: GpuInstanceKind(3),
    3: GpuInstanceKind(4),
    4: GpuInstanceKind(7),
    5: GpuInstanceKind(8),
    6: GpuInstanceKind(6),
    7: GpuInstanceKind(1, ("me",)),
    8: GpuInstanceKind(2, ("me",)),
    9: GpuInstanceKind(1),
    10: GpuInstanceKind(1, ("gfx",)),
    11: GpuInstanceKind(2, ("gfx",)),
    12: GpuInstanceKind(4, ("gfx",)),
    13: GpuInstanceKind(1, (), ("me",)),
    14: GpuInstanceKind(2, (), ("me",)),
    15: GpuInstanceKind(1, ("me.all",)),
    16: GpuInstanceKind(2, ("me.all",)),
    17: GpuInstanceKind(3, ("gfx",)),
}

# NVML's COMPUTE_INSTANCE_PROFILE_* enumeration -> compute slices.
COMPUTE_INSTANCE_SLICES: Final[Mapping[int, int]] = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1, 8: 7}


def parse_mig_profile(text: str) -> MigProfile:
    """Parse ``1g.10gb``, ``1c.3g.40gb``, ``1g.10gb+me``, ``1g.24gb-me``. Raises ConfigError on anything else."""
    plus, minus = "+" in text, "-" in text
    if plus and minus:
        raise _invalid(text, "it has both + and - attributes")
    fields, _, listed = text.partition("+" if plus else "-")
    match = _FIELDS.fullmatch(fields)
    if match is None:
        raise _invalid(text, "it does not have that form")
    g, gb = int(match[2]), int(match[3])
    c = int(match[1]) if match[1] else g
    if c > g:
        raise _invalid(text, f"a compute instance of {c} slices does not fit a GPU instance of {g}")
    attributes = _attributes(text, listed) if plus or minus else ()
    return MigProfile(c, g, gb, attributes if plus else (), attributes if minus else ())


def parse_mig_resource(name: str) -> MigProfile:
    """The profile behind ``nvidia.com/mig-1g.10gb.me``, ``mig-1g.10gb.me`` or ``1g.10gb.me``. Raises ConfigError.

    Several ``+`` attributes can't be told apart after ``,`` became ``.``: they come back as one, ``me.all`` style.
    """
    form = name.removeprefix(MIG_RESOURCE_PREFIX).removeprefix("mig-")
    match = _FIELDS.match(form)
    rest = form[match.end() :] if match else ""
    if match is not None and rest.startswith("."):
        form = form[: match.end()] + "+" + rest[1:]
    return parse_mig_profile(form)


def memory_gb(memory_mib: int, total_bytes: int) -> int:
    """The memory figure in a profile's name: go-nvlib's ``round(ceil(8*mig/total)/8 * ceil(total/GiB))``.

    ``memory_mib`` is the instance's size and ``total_bytes`` the GPU's total as NVML reports them. Exact in integers;
    halves round up, as Go's math.Round does. Raises ValueError when the total is not positive.
    """
    if total_bytes <= 0:
        raise ValueError(f"total memory must be positive, not {total_bytes}")
    eighths = -(-_MEMORY_SLICES * memory_mib * _MIB // total_bytes)
    total_gib = -(-total_bytes // _GIB)
    return (eighths * total_gib + _MEMORY_SLICES // 2) // _MEMORY_SLICES


def profile_name(
    *,
    gi_slices: int,
    ci_slices: int,
    memory_mib: int,
    total_bytes: int,
    attributes: tuple[str, ...] = (),
    negative_attributes: tuple[str, ...] = (),
) -> str:
    """The driver's spelling of a profile from what NVML reports about an instance. Raises ValueError as memory_gb."""
    gb = memory_gb(memory_mib, total_bytes)
    return str(MigProfile(ci_slices, gi_slices, gb, tuple(sorted(attributes)), tuple(sorted(negative_attributes))))


def profile_name_of_kinds(*, gi_kind: int, ci_kind: int, memory_mib: int, total_bytes: int) -> str:
    """As profile_name, from NVML's two profile enumerations. Raises KeyError on a kind that the tables don't have."""
    kind = GPU_INSTANCE_KINDS[gi_kind]
    return profile_name(
        gi_slices=kind.slices,
        ci_slices=COMPUTE_INSTANCE_SLICES[ci_kind],
        memory_mib=memory_mib,
        total_bytes=total_bytes,
        attributes=kind.attributes,
        negative_attributes=kind.negative_attributes,
    )


def _attributes(text: str, listed: str) -> tuple[str, ...]:
    attributes = listed.split(",")
    for attribute in attributes:
        if not _ATTRIBUTE.fullmatch(attribute):
            raise _invalid(text, f'"{attribute}" is not an attribute: letters, digits and inner dots, a letter first')
    if len(set(attributes)) != len(attributes):
        raise _invalid(text, "an attribute is given twice")
    return tuple(sorted(attributes))


def _invalid(text: str, reason: str) -> ConfigError:
    return ConfigError(f'"{text}" is not a MIG profile: {reason}', _GRAMMAR, _REMEDY)
