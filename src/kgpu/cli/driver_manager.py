"""``driver-manager``: the first container of a driver's pod, under the replaced program's name and variables."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import UserError
from kgpu.base.printable import one_line
from kgpu.cli._common import ExampleGroup, run_async

if TYPE_CHECKING:
    from kgpu.drivermanager.config import ManagerSettings

EXAMPLE: Final = "NODE_NAME=gpu-node-1 driver-manager uninstall_driver"
LAST_WORDS: Final = 300
"""Characters of a termination message that others can show on one line."""


class _ManagerGroup(ExampleGroup):
    """Adds the variables to the help, made from the settings' rows."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kgpu.drivermanager.config import SETTINGS

        with formatter.section("Environment"):
            formatter.write_dl([(row.envs[0], _about(row)) for row in SETTINGS])
        super().format_epilog(ctx, formatter)


def _about(row: Any) -> str:
    default = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
    return f"{row.help}  [default: {default}]" if default else str(row.help)


@click.group("driver-manager", cls=_ManagerGroup, examples=EXAMPLE)
def driver_manager() -> None:
    """Make a node ready for the driver's container."""


@driver_manager.command("uninstall_driver", examples=EXAMPLE)
def uninstall_driver() -> None:
    """Unload the driver that is there, once nothing uses it, and take its container's root away.

    What it pauses and cordons is given back at the end. A driver on the host is left alone: the node is labelled
    nvidia.com/gpu.deploy.driver=pre-installed, and the command fails.
    """
    from kgpu.drivermanager.config import of_environment
    from kgpu.drivermanager.this_machine import write_last_words

    try:
        run_async(_uninstall(of_environment(os.environ)))
    except UserError as error:
        write_last_words(one_line(error.one_line(), LAST_WORDS), os.environ)
        raise


async def _uninstall(settings: ManagerSettings) -> None:
    from kgpu.base.clock import SystemClock
    from kgpu.drivermanager.run import DriverManager
    from kgpu.drivermanager.this_machine import this_machine
    from kgpu.kube.client import connect

    machine, api = this_machine(os.environ), connect(os.environ.get("KUBECONFIG", ""))
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await DriverManager(settings, machine, api, clock=SystemClock(), say=click.echo).uninstall()
    except asyncio.CancelledError:
        raise click.exceptions.Exit(128 + signal.SIGTERM) from None
    finally:
        await api.close()
    click.echo("the node is ready for the driver's container")


@driver_manager.command("preflight_check", examples="driver-manager preflight_check")
def preflight_check() -> None:
    """Say what a driver's installation would meet on this machine; nothing is changed."""
    from kgpu.drivermanager.preflight import report
    from kgpu.drivermanager.this_machine import machine_root, this_machine

    for line in report(this_machine(os.environ).state(), machine_root(os.environ)):
        click.echo(line)
