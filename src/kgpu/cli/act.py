"""``kgpu act``: what the operator's pods run on a node. People use ``kgpu node``."""

from __future__ import annotations

import os

import click

from kgpu.base.errors import HostError
from kgpu.cli._common import ExampleGroup
from kgpu.formats.names import DRIVER_INSTALL_DIR

EXAMPLE = "kgpu act reboot --id 0b9c7c1e-1 --boot-id 8a7f3c52-5a53-4a1e-9a53-0e3b6a0d7d11"
RESET_EXAMPLE = (
    "kgpu act reset-gpu --id 0b9c7c1e-1 --boot-id 8a7f3c52-5a53-4a1e-9a53-0e3b6a0d7d11 "
    "--gpu GPU-5f1e2c9a-7d34-4b60-8c15-9e2a6b7f0d43"
)


@click.group("act", cls=ExampleGroup, examples=EXAMPLE)
def act() -> None:
    """What kgpu's operator runs on nodes; people use `kgpu node`."""


@act.command("reboot", examples=EXAMPLE)
@click.option("--id", "identity", required=True, metavar="ID", help="The act's ID; a machine heeds each once.")
@click.option("--boot-id", "boot", required=True, metavar="ID", help="The boot that is to end.")
def reboot(*, identity: str, boot: str) -> None:
    """Ask this machine to reboot. Exit code 13 where nothing was done."""
    from kgpu.operations.model import REFUSED
    from kgpu.operations.node_reboot import reboot as ask
    from kgpu.operations.node_reboot import this_machine

    try:
        click.echo(ask(identity, boot, this_machine(os.environ)))
    except HostError as error:
        click.echo(error.one_line(), err=True)
        raise click.exceptions.Exit(REFUSED) from error


@act.command("reset-gpu", examples=RESET_EXAMPLE)
@click.option("--id", "identity", required=True, metavar="ID", help="The act's ID; a machine heeds each once.")
@click.option("--boot-id", "boot", required=True, metavar="ID", help="The boot that the order is for.")
@click.option("--gpu", "gpus", required=True, multiple=True, metavar="UUID", help="A GPU; repeat for more.")
@click.option(
    "--driver-install-dir", "install_dir", default=DRIVER_INSTALL_DIR, metavar="DIR", show_default=True,
    help="Where a driver container has the driver, on the host.",
)  # fmt: skip
def reset_gpu(*, identity: str, boot: str, gpus: tuple[str, ...], install_dir: str) -> None:
    """Reset GPUs that no process uses. Exit codes: 1 it failed, 13 nothing was done, 14 begun before and not known how
    it ended, 15 the driver does not return.
    """
    from kgpu.operations.model import REFUSED
    from kgpu.operations.node_gpus import this_machine
    from kgpu.operations.node_reset import ResetOrder, reset

    try:
        result = reset(ResetOrder(act=identity, boot=boot, gpus=gpus), this_machine(os.environ, install_dir))
    except HostError as error:
        click.echo(error.one_line(), err=True)
        raise click.exceptions.Exit(REFUSED) from error
    click.echo(result.text, err=result.code != 0)
    if result.code:
        raise click.exceptions.Exit(result.code)
