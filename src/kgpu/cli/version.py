"""``kgpu version``: which kgpu this is, and what it runs on."""

from __future__ import annotations

import platform

import click

from kgpu import __version__
from kgpu.cli._common import ExampleCommand, output_option, print_json


@click.command(cls=ExampleCommand, examples="kgpu version\nkgpu version -o json")
@output_option()
def version(output: str) -> None:
    """Print the version."""
    if output == "json":
        print_json(
            {
                "version": __version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "kernel": platform.release(),
            }
        )
    else:
        click.echo(f"kgpu {__version__}")
