"""``kgpu cdi``: write and list the CDI specs through which containers get their accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from kgpu.cli._common import ExampleGroup, run_async
from kgpu.formats.names import NVIDIA_DOMAIN

if TYPE_CHECKING:
    from kgpu.host.root import DriverRoot
    from kgpu.toolkit.config import GenerateConfig
    from kgpu.toolkit.model import Generated

GENERATE_EXAMPLES: Final = """
kgpu cdi generate --output /var/run/cdi/nvidia.yaml
kgpu cdi generate --driver-root /run/nvidia/driver --format json
kgpu cdi generate --driver-root DIR --device-name-strategy uuid
"""
LIST_EXAMPLES: Final = """
kgpu cdi list
kgpu cdi list --spec-dir /var/run/cdi
"""


@click.group(cls=ExampleGroup, examples="kgpu cdi generate\nkgpu cdi list")
def cdi() -> None:
    """Write and list CDI specs for containers."""


@cdi.command(examples=GENERATE_EXAMPLES)
@click.option(
    "--driver-root",
    "--root",
    default="/",
    show_default=True,
    metavar="DIR",
    envvar="NVIDIA_CTK_DRIVER_ROOT",
    help="Where the driver is installed or mounted.",
)
@click.option(
    "--dev-root",
    default="",
    metavar="DIR",
    envvar="NVIDIA_CTK_DEV_ROOT",
    help="The folder that has /dev. Default: the driver root if it has the nodes, else /.",
)
@click.option(
    "--host-driver-root",
    default="",
    metavar="DIR",
    help="The driver root's path as the container runtime sees it, where that differs.",
)
@click.option(
    "--output",
    default="",
    metavar="FILE",
    envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
    help="The file to write. Default: standard output.",
)
@click.option(
    "--format",
    "form",
    default="",
    metavar="yaml|json",
    envvar="NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT",
    help="Default: by the file's extension, else yaml.",
)
@click.option(
    "--device-name-strategy",
    "strategies",
    multiple=True,
    metavar="index|uuid|type-index",
    envvar="NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES",
    help="How devices are named; may be given several times. Default: index and uuid.",
)
@click.option(
    "--vendor",
    "--cdi-vendor",
    default=NVIDIA_DOMAIN,
    show_default=True,
    metavar="NAME",
    envvar="NVIDIA_CTK_CDI_GENERATE_VENDOR",
    help="The part of the kind before the slash.",
)
@click.option(
    "--class",
    "--cdi-class",
    "device_class",
    default="gpu",
    show_default=True,
    metavar="NAME",
    envvar="NVIDIA_CTK_CDI_GENERATE_CLASS",
    help="The part of the kind after the slash.",
)
@click.option(
    "--no-all-device",
    is_flag=True,
    envvar="NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE",
    help="Leave out the device named all.",
)
def generate(
    driver_root: str,
    dev_root: str,
    host_driver_root: str,
    *,
    output: str,
    form: str,
    strategies: tuple[str, ...],
    vendor: str,
    device_class: str,
    no_all_device: bool,
) -> None:
    """Write a CDI spec for this node's GPUs and MIG slices, free of hooks."""
    from kgpu.host.root import DriverRoot
    from kgpu.toolkit import config as settings
    from kgpu.toolkit.run import write_spec

    config = settings.generate_config(
        vendor=vendor, device_class=device_class, strategies=strategies, all_device=not no_all_device
    )
    target = settings.output(output, form)
    root = DriverRoot.at(driver_root, dev=dev_root, driver_host=host_driver_root)
    generated = run_async(_generate(root, config))
    for note in generated.notes:
        click.echo(f"note: {note}", err=True)
    text = write_spec(generated.spec, target)
    if text:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        click.echo(f"{target.path}: {len(generated.spec.devices)} devices of {generated.spec.kind}", err=True)


@cdi.command("list", examples=LIST_EXAMPLES)
@click.option(
    "--spec-dir",
    "folders",
    multiple=True,
    metavar="DIR",
    envvar="NVIDIA_CTK_CDI_SPEC_DIRS",
    help="A folder of specs; later ones win. Default: /etc/cdi and /var/run/cdi.",
)
def list_(folders: tuple[str, ...]) -> None:
    """Print the qualified name of every device that a runtime can resolve, one per line."""
    from kgpu.toolkit.config import SPEC_DIRS
    from kgpu.toolkit.run import list_devices

    listing = list_devices([part for item in folders for part in item.split(",") if part] or SPEC_DIRS)
    for warning in listing.warnings:
        click.echo(f"warning: {warning}", err=True)
    for name in listing.names:
        click.echo(name)


async def _generate(root: DriverRoot, config: GenerateConfig) -> Generated:
    from kgpu.hw.open import open_reader
    from kgpu.toolkit.run import generate as run

    reader = open_reader(driver_root=root.files.here)
    try:
        return await run(reader, root, config)
    finally:
        await reader.close()
