"""Profiles of simulated nodes of every vendor, by name or file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.hw.simulator import profiles
from kgpu.hw.simulator.amd import profiles as amd
from kgpu.hw.simulator.amd.profiles import AmdProfile
from kgpu.hw.simulator.profiles import Profile

AnyProfile: TypeAlias = Profile | AmdProfile
_AMD: Final = re.compile(r"^vendor: *amd *$", re.MULTILINE)


def names() -> tuple[str, ...]:
    """The built-in profiles, sorted."""
    return tuple(sorted((*profiles.names(), *amd.names())))


def load(profile: str, *, gpus: int | None = None, topology: Path | None = None) -> AnyProfile:
    """A built-in profile, or the file that ``profile`` names; the options are those of ``profiles.load``.

    A file that says ``vendor: amd`` is an AMD node's. Raises ConfigError.
    """
    text = ""
    if profiles.is_file(profile):
        text = profiles.read(Path(profile))
    elif profile in amd.names():
        text = amd.text_of(profile)
    elif profile not in profiles.names():
        raise profiles.unknown_profile(profile, names())
    if not (profile in amd.names() or _AMD.search(text)):
        return profiles.load(profile, gpus=gpus, topology=topology)
    if topology is not None:
        raise ConfigError(
            "--topology with AMD GPUs", "a profile that says which are joined (numa, hive)", "leave --topology out"
        )
    return amd.parse(text, name=Path(profile).stem, source=profile, gpus=gpus)


def is_amd(profile: str) -> bool:
    """Whether a profile is of AMD GPUs. Raises ConfigError for one that is not there."""
    return isinstance(load(profile), AmdProfile)
