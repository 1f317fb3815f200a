"""``kgpu act``: what the operator's pods run on a node. People use ``kgpu node``."""

from __future__ import annotations

import os

import click

from kgpu.base.errors import HostError
from kgpu.cli._common import ExampleGroup

EXAMPLE = "kgpu act reboot --id 0b9c7c1e-1 --boot-id 8a7f3c52-5a53-4a1e-9a53-0e3b6a0d7d11"


@click.group("act", cls=ExampleGroup, examples=EXAMPLE)
def act() -> None:
    """What kgpu's operator runs on nodes; people use `kgpu node`."""


@act.command("reboot", examples=EXAMPLE)
@click.option("--id", "identity", required=True, metavar="ID", help="The act's ID; a machine heeds each once.")
@click.option("--boot-id", "boot", required=True, metavar="ID", help="The boot that is to end.")
def reboot(*, identity: str, boot: str) -> None:
    """Ask this machine to reboot. Exit code 13 where nothing was done."""
    from kgpu.operations.model import REFUSED
    from kgpu.operations.node_act import reboot as ask
    from kgpu.operations.node_act import this_machine

    try:
        click.echo(ask(identity, boot, this_machine(os.environ)))
    except HostError as error:
        click.echo(error.one_line(), err=True)
        raise click.exceptions.Exit(REFUSED) from error
