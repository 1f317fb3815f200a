"""Components of ``nvidia-validator`` that look for one kernel module each, and for the network cards' driver.

They write ``<component>-ready`` like the replaced program, and ``<component>-not-ready`` with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.validator.modules import BY_COMPONENT, MLX5, MOFED, SideModule, mofed_trouble

if TYPE_CHECKING:
    from kgpu.formats.validation_report import CheckTrouble
    from kgpu.validator.files import Folder

COMPONENTS: Final = (*BY_COMPONENT, MOFED)
NOT_PROVIDED: Final = ("vfio-pci", "vgpu-manager", "vgpu-devices", "cc-manager")
_MELLANOX: Final = "15b3"
_MOFED_READY: Final = "run/mellanox/drivers/.driver-ready"


def refuse_virtual_machines(component: str, known: str) -> None:
    """Raise ConfigError for a component that is about virtual machines or confidential computing."""
    if component in NOT_PROVIDED:
        raise ConfigError(
            f"kgpu does nothing for virtual machines and confidential computing, and does not validate {component}",
            known,
            "leave this container out; keep NVIDIA's operator on nodes whose GPUs go to virtual machines",
        )


async def validate_module(
    component: str, env: Mapping[str, str], *, host_root: Path, folder: Folder, wait: bool, pause: float
) -> bool:
    """Look for what ``component`` needs, and write its file; with ``wait`` again and again, every ``pause`` seconds.

    ``env`` tells the component ``mofed`` whether it is needed at all. Returns whether all is well. Raises HostError.
    """
    from kgpu.hw import roots
    from kgpu.validator import files

    sys = Path(roots.sys_root(str(host_root)))
    if component == MOFED and (why := _mofed_not_needed(env, sys)):
        folder.apply({files.ready(MOFED): None, files.not_ready(MOFED): None})
        click.echo(f"{MOFED:<8} skipped    {why}")
        return True
    look = _mofed(env, sys, host_root) if component == MOFED else _module(BY_COMPONENT[component], sys)
    folder.apply({files.ready(component): None})
    while True:
        trouble = look()
        if trouble is None:
            folder.apply({files.not_ready(component): None, files.ready(component): b""})
            click.echo(f"{component:<8} passed")
            return True
        folder.apply({files.not_ready(component): f"{trouble.one_line()}\n".encode()})
        click.echo(
            f"{component:<8} failed     {trouble.what}\n  expected: {trouble.expected}\n  to do: {trouble.remedy}"
        )
        if not wait:
            return False
        await asyncio.sleep(pause)


def _module(row: SideModule, sys: Path) -> Callable[[], CheckTrouble | None]:
    from kgpu.host import kernel_modules

    return lambda: row.trouble(kernel_modules.loaded(sys, (row.module,)))


def _mofed_not_needed(env: Mapping[str, str], sys: Path) -> str:
    """Why nobody waits for the network cards' driver, "" if somebody does."""
    from kgpu.host import pci

    if env.get("GPU_DIRECT_RDMA_ENABLED") != "true":
        return "GPU_DIRECT_RDMA_ENABLED is not true"
    try:
        found = any(function.vendor == _MELLANOX for function in pci.functions(sys / "bus/pci/devices"))
    except OSError:
        found = False
    return "" if found else "no network card of Mellanox is on the PCI bus"


def _mofed(env: Mapping[str, str], sys: Path, host_root: Path) -> Callable[[], CheckTrouble | None]:
    on_host = env.get("USE_HOST_MOFED") == "true"
    places = (Path("/") / _MOFED_READY, host_root / _MOFED_READY)

    def look() -> CheckTrouble | None:
        # A module that is built into the kernel has a folder too, and does as well.
        there = (sys / "module" / MLX5).is_dir() if on_host else any(place.is_file() for place in places)
        return mofed_trouble(loaded=there, on_host=on_host)

    return look
