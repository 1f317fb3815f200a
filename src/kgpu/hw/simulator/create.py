"""Makes a simulated driver root: the state file, libraries, programs, device nodes and the files around them.

The root is built beside its place and moved there in one step, so it is either whole or not there (on a mount point,
which can't be renamed, the state file comes last). Only a folder that is empty, missing, or an earlier simulated root
is ever replaced.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError, HwError
from kgpu.formats import names
from kgpu.formats.simulated import state_file
from kgpu.hw.simulator import build, fill, machines, profiles, tree
from kgpu.hw.simulator.others import simulation_for, simulation_of, with_version
from kgpu.hw.simulator.state import DriverState

# Artifact of native/ -> where it goes under the root; {lib}: the library folder, {version}: the driver's.
ARTIFACTS: Final[Mapping[str, str]] = {
    "libnvidia-ml.so.1": "{lib}/libnvidia-ml.so.{version}",
    "libcuda.so.1": "{lib}/libcuda.so.{version}",
    "nvidia-smi": "usr/bin/nvidia-smi",
    "nvidia-cuda-mps-control": "usr/bin/nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server": "usr/bin/nvidia-cuda-mps-server",
    "vectoradd": "usr/share/kgpu/vectoradd",
    "gpu-load": "usr/share/kgpu/gpu-load",
}
LINKS: Final[Mapping[str, str]] = {
    "{lib}/libnvidia-ml.so.1": "libnvidia-ml.so.{version}",
    "{lib}/libnvidia-ml.so": "libnvidia-ml.so.1",
    "{lib}/libcuda.so.1": "libcuda.so.{version}",
    "{lib}/libcuda.so": "libcuda.so.1",
}


def create_root(
    profile: str | machines.AnyProfile,
    root: Path,
    *,
    gpus: int | None = None,
    topology: Path | None = None,
    seed: str | None = None,
    force: bool = False,
    driver: str | None = None,
) -> Path:
    """Make the simulated driver root ``root`` of a profile (a name, a file, or a loaded one) and return its path.

    ``gpus`` (1-64) and ``topology`` vary the profile, ``driver`` is another driver version. ``seed`` tells nodes of
    one profile apart: same seed, same UUIDs and serials. An existing simulated root is replaced only with ``force``.
    Raises ConfigError (bad profile, folder in the way) or HwError (the libraries can't be built or files not made).
    """
    if isinstance(profile, str):
        profile = machines.load(profile, gpus=gpus, topology=topology)
    if driver is not None and not isinstance(profile, profiles.Profile):
        profile = with_version(profile, driver)
    elif driver is not None and isinstance(profile, profiles.Profile):
        version = profiles.convert(
            {"version": driver, "cuda": profile.driver.cuda}, profiles.DriverVersions, source="--driver"
        )
        profile = msgspec.structs.replace(profile, driver=version)
    target = Path(os.path.abspath(root))
    _check_target(target, force=force)
    native = build.native_dir() if isinstance(profile, profiles.Profile) else None
    inside = target.exists() and (os.path.ismount(target) or not os.access(target.parent, os.W_OK))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target if inside else target.parent))
        try:
            temporary.chmod(0o755)
            if not isinstance(profile, profiles.Profile):
                simulation_for(profile).create(profile, temporary, seed=seed or "")
            else:
                _populate(temporary, profile, native or Path(), seed or "")
            (_move_entries if inside else _move)(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise HwError(
            f"the simulated driver root {target} can't be made: {error}",
            "a folder that this user may write, with some megabytes free",
            "choose another --root",
        ) from error
    return target


def library_path(root: Path) -> Path:
    """The folder for LD_LIBRARY_PATH."""
    return tree.library_dir(root)


def environment(root: Path) -> dict[str, str]:
    """What a process needs in its environment to use the simulated driver of ``root``."""
    if simulation_of(root) is not None:
        return {names.ENV_HW_STATE: str(root / "state")}
    return {names.ENV_HW_STATE: str(root / "state"), "LD_LIBRARY_PATH": str(library_path(root))}


def _check_target(target: Path, *, force: bool) -> None:
    try:
        present = set(os.listdir(target))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{target} can't be used: {error.strerror}", "a folder", "choose another --root") from error
    if not present:
        return
    if state_file(str(target)) is None:
        raise ConfigError(
            f"{target} has other files in it, such as {min(present)}",
            "an empty or missing folder",
            "choose another --root",
        )
    if not force:
        raise ConfigError(
            f"{target} already has a simulated driver",
            "an empty or missing folder",
            "choose another --root, or replace it with --force (programs that use it keep the old state)",
        )


def _populate(root: Path, profile: profiles.Profile, native: Path, seed: str) -> None:
    def write(state: DriverState) -> None:
        view: Any = state.view
        fill.fill(view, profile, seed=seed)
        tree.build(root, view, profile)

    DriverState.create(
        root / "state",
        driver_version=profile.driver.version,
        cuda_version=fill.cuda_number(profile.driver.cuda),
        profile=profile.name[:63],
        hostname=seed[:63],
        fill=write,
    ).close()
    words = {"lib": str(tree.library_dir(root).relative_to(root)), "version": profile.driver.version}
    for name, destination in ARTIFACTS.items():
        if not (native / name).exists():  # a build without these sources
            continue
        copy = root / destination.format(**words)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(native / name, copy)
        copy.chmod(0o755)
    for link, to in LINKS.items():
        place = root / link.format(**words)
        if (place.parent / to.format(**words)).exists():
            tree.symlink(place, to.format(**words))


def _move(temporary: Path, target: Path) -> None:
    """Put the finished tree in its place by one rename; an earlier root goes aside first."""
    if not target.exists() or not os.listdir(target):
        os.rename(temporary, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _move_entries(temporary: Path, target: Path) -> None:
    """The same where ``target`` itself can't be renamed (a mount point): entry by entry, the state file last."""
    for name in sorted(os.listdir(temporary), key=lambda name: name == "state"):
        place = target / name
        if place.is_dir():
            shutil.rmtree(place)
        os.rename(temporary / name, place)
