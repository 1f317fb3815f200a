"""Containers of NVIDIA's driver image on a simulated node: they get the node's machine, whose driver they install.

A real one is privileged and has the machine's kernel. This one has the machine's simulated root at a place of its own,
and its ``/sys``. There is an image for each release of a branch that is known, for the systems that NVIDIA builds
drivers for; precompiled ones are there for the kernels of Ubuntu's usual flavours. For others the registry has none.
A digest of the lab's registry is the tag itself, in hex (``digest_of``): so there is one for each image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kgpu.formats import names
from kgpu.formats.cdi import CdiMount
from kgpu.formats.support import CUDA_BY_BRANCH
from kgpu.hw.simulator import container_settings
from kgpu.hw.simulator.driver_image import PRECOMPILED, SYSTEM
from kgpu.lab import samples
from kgpu.lab.nodes.oci import OciConfig

_SOURCE: Final = str(Path(__file__).resolve().parents[3])
_MACHINE: Final = "/run/kgpu-lab/machine"
_BRANCHES: Final = frozenset(branch for branch, _ in CUDA_BY_BRANCH)
_SYSTEMS: Final = re.compile(r"(?:ubuntu|rhel|rhcos|rocky|sles)[\d.]+")
_BUILT_FOR: Final = re.compile(r"[\d.]+-\d+-(?:generic|nvidia|aws|azure|gcp|oracle)(?:-64k)?")
_PRECOMPILED: Final = "{}.82.07"
"""The release in the lab's precompiled image of a branch."""
_PARTS: Final = ("version", "kernel", "system")
_DIGEST_BYTES: Final = 32


def digest_of(tag: str) -> str:
    """The digest, without ``sha256:``, of the driver image of that tag, such as ``570.133.20-rhel9``."""
    return tag.encode().ljust(_DIGEST_BYTES, b"\0").hex()


def is_one(image: str) -> bool:
    """Whether it is the driver's image, of whatever release."""
    found = samples.find(image)
    return found is not None and found.name == samples.DRIVER


def has_machine(image: str) -> bool:
    """Whether its container gets the node's machine: it is the driver's, or one of those beside it."""
    found = samples.find(image)
    return found is not None and found.name in (samples.DRIVER, samples.DRIVER_SIDE)


def version_of(image: str) -> str:
    """The release in the image, "" for another image."""
    version = _tag(image)["version"]
    return _PRECOMPILED.format(version) if version.isdigit() else version


def _tag(image: str) -> dict[str, str]:
    """The parts of the image's tag; all are "" for another image, and for one with a digest of nothing."""
    pattern = samples.by_name(samples.DRIVER).pattern
    match = re.fullmatch(pattern, image)
    if match is not None and match["digest"]:
        tag = bytes.fromhex(match["digest"]).rstrip(b"\0").decode(errors="replace")
        match = re.fullmatch(pattern, f"driver:{tag}")
    return {name: (match[name] or "") if match else "" for name in _PARTS}


def missing(image: str, machine: Path) -> str:
    """The container engine's words for a driver image that can't be pulled, "" for all others."""
    if not is_one(image):
        return ""
    wanted = container_settings.settings(machine)
    if _is_built(_tag(image)) and (wanted is None or wanted.fail != "pull"):
        return ""
    return (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve reference '
        f'"{image}": {image}: not found'
    )


def _is_built(tag: Mapping[str, str]) -> bool:
    """Whether the registry has an image with that tag."""
    branch = int(tag["version"].partition(".")[0] or 0)
    fits = not tag["kernel"] or _BUILT_FOR.fullmatch(tag["kernel"])
    return branch in _BRANCHES and _SYSTEMS.fullmatch(tag["system"]) is not None and bool(fits)


def on(config: OciConfig, machine: Path, image: str) -> OciConfig:
    """The configuration with the machine whose root is ``machine``."""
    path = os.pathsep.join(filter(None, (_SOURCE, config.env.get("PYTHONPATH", ""))))
    return replace(
        config,
        env={
            **config.env,
            "DRIVER_VERSION": version_of(image),
            PRECOMPILED: _tag(image)["kernel"],
            SYSTEM: _tag(image)["system"],
            names.ENV_SIMULATED_MACHINE: _MACHINE,
            "PYTHONPATH": path,
            "PYTHONSAFEPATH": "1",
        },
        mounts=(
            *config.mounts,
            CdiMount(host_path=str(machine / "sys"), container_path="/sys"),
            CdiMount(host_path=str(machine), container_path=_MACHINE),
        ),
    )
