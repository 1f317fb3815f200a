"""``mps-control-daemon``: a name of the replaced plugin's image behind which kgpu has nothing yet, and says so."""

from __future__ import annotations

import click

from kgpu.base.errors import ConfigError
from kgpu.cli._common import ExampleCommand


@click.command(
    "mps-control-daemon",
    cls=ExampleCommand,
    examples="kgpu device-plugin check-config plugin.yaml",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def mps_control_daemon(*, words: tuple[str, ...]) -> None:
    """Always refused: kgpu runs no MPS control daemon yet, neither the daemon nor mount-shm."""
    del words
    raise ConfigError(
        "kgpu has no MPS control daemon yet",
        "the replaced device plugin's own image for the DaemonSet that runs it, with the same mps.root",
        "set that DaemonSet's image back, or share GPUs by sharing.timeSlicing; kgpu's device plugin offers MPS shares"
        " as soon as a daemon answers under MPS_ROOT",
    )
