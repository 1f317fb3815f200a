"""``kgpu lab demo``: the tour of ``kgpu.lab.demo``, told on the terminal."""

from __future__ import annotations

import sys

import click

from kgpu.cli._common import ExampleCommand, run_async

NEXT = """
What to try next:
  kgpu lab hw create hgx-h100 --root /tmp/node1    a simulated node of your own; see `kgpu lab hw --help`
  kgpu lab up --real                               a real Kubernetes cluster with simulated GPUs (Linux, root)
  kgpu lab run --list                              stories to play on it
"""


class _Screen:
    """Numbers the steps; colours only on a terminal."""

    def __init__(self) -> None:
        self._number = 0

    def step(self, title: str) -> None:
        self._number += 1
        click.echo()
        click.echo(click.style(f"{self._number}. {title}", bold=True))

    def command(self, line: str) -> None:
        click.echo(click.style(f"   $ {line}", fg="cyan"))

    def shows(self, text: str) -> None:
        for line in text.splitlines():
            click.echo(f"   {line}")
        sys.stdout.flush()


@click.command("demo", cls=ExampleCommand, examples="kgpu lab demo\nkgpu lab demo --profile dgx-a100-80g")
@click.option("--profile", default="hgx-h100", show_default=True, help="The simulated machine; see `kgpu lab hw list`.")
def demo(*, profile: str) -> None:
    """A tour on one simulated node: labels, allocation, a CUDA program, a fault and its recovery. Needs no root."""
    from kgpu.hw.fake.build import native_dir
    from kgpu.lab import progress
    from kgpu.lab.demo import tour

    with progress.for_terminal().step("the simulated driver is built (once)"):
        native_dir()
    run_async(tour(_Screen(), profile))
    click.echo(NEXT.rstrip())
