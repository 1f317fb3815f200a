"""Containers of NVIDIA's driver image on a simulated node: they get the node's machine, whose driver they install.

A real one is privileged and has the machine's kernel. This one has the machine's simulated root at a place of its own,
and its ``/sys``. There is an image for each release of a branch that is known; for others the registry has none.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from kgpu.formats import names
from kgpu.formats.cdi import CdiMount
from kgpu.formats.support import CUDA_BY_BRANCH
from kgpu.hw.simulator import container_settings
from kgpu.lab import samples
from kgpu.lab.nodes.oci import OciConfig

_SOURCE: Final = str(Path(__file__).resolve().parents[3])
_MACHINE: Final = "/run/kgpu-lab/machine"
_BRANCHES: Final = frozenset(branch for branch, _ in CUDA_BY_BRANCH)


def is_one(image: str) -> bool:
    """Whether it is the driver's image, of whatever release."""
    found = samples.find(image)
    return found is not None and found.name == samples.DRIVER


def has_machine(image: str) -> bool:
    """Whether its container gets the node's machine: it is the driver's, or one of those beside it."""
    found = samples.find(image)
    return found is not None and found.name in (samples.DRIVER, samples.DRIVER_SIDE)


def version_of(image: str) -> str:
    """The release in the image's tag, "" for another image."""
    match = re.fullmatch(samples.by_name(samples.DRIVER).pattern, image)
    return match["version"] if match else ""


def missing(image: str, machine: Path) -> str:
    """The container engine's words for a driver image that can't be pulled, "" for all others."""
    if not is_one(image):
        return ""
    wanted = container_settings.settings(machine)
    known = int(version_of(image).partition(".")[0]) in _BRANCHES
    if known and (wanted is None or wanted.fail != "pull"):
        return ""
    return (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve reference '
        f'"{image}": {image}: not found'
    )


def on(config: OciConfig, machine: Path, image: str) -> OciConfig:
    """The configuration with the machine whose root is ``machine``."""
    path = os.pathsep.join(filter(None, (_SOURCE, config.env.get("PYTHONPATH", ""))))
    return replace(
        config,
        env={
            **config.env,
            "DRIVER_VERSION": version_of(image),
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
