"""Profiles of simulated nodes of every vendor, by name or file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.hw.simulator import profiles
from kgpu.hw.simulator.amd import profiles as amd
from kgpu.hw.simulator.amd.profiles import AmdProfile
from kgpu.hw.simulator.box import model as box
from kgpu.hw.simulator.box.model import BoxProfile
from kgpu.hw.simulator.profiles import Profile

AnyProfile: TypeAlias = Profile | AmdProfile | BoxProfile
TITLES: Final = {"amd": "AMD GPUs", "gaudi": "Gaudi accelerators", "intel": "Intel GPUs"}
_VENDOR: Final = re.compile(r"^vendor: *(amd|gaudi|intel) *$", re.MULTILINE)


def names() -> tuple[str, ...]:
    """The built-in profiles, sorted."""
    return tuple(sorted((*profiles.names(), *amd.names(), *box.names())))


def load(profile: str, *, gpus: int | None = None, topology: Path | None = None) -> AnyProfile:
    """A built-in profile, or the file that ``profile`` names; the options are those of ``profiles.load``.

    A file that says ``vendor: amd``, ``gaudi`` or ``intel`` is a node's of that vendor. Raises ConfigError.
    """
    text = ""
    if profiles.is_file(profile):
        text = profiles.read(Path(profile))
    elif profile in amd.names():
        text = amd.text_of(profile)
    elif profile in box.names():
        text = box.text_of(profile)
    elif profile not in profiles.names():
        raise profiles.unknown_profile(profile, names())
    found = _VENDOR.search(text)
    vendor = "amd" if profile in amd.names() else found[1] if found else ""
    if not vendor:
        return profiles.load(profile, gpus=gpus, topology=topology)
    if topology is not None:
        raise ConfigError(
            f"--topology with {TITLES[vendor]}", "a profile that says where they sit (numa)",
            "leave --topology out",
        )  # fmt: skip
    parse = amd.parse if vendor == "amd" else box.parse
    return parse(text, name=Path(profile).stem, source=profile, gpus=gpus)
