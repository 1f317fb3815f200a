"""``kgpu lab idle-weekend``: a recording to try ``kgpu usage`` on, of a fleet that stands idle over weekends."""

from __future__ import annotations

import click

from kgpu.cli._common import ExampleCommand

EXAMPLES = """
kgpu lab idle-weekend > weekend.jsonl
kgpu lab idle-weekend --nodes 2 --weekends 2 | kgpu usage --from -
"""


@click.command("idle-weekend", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--nodes", type=click.IntRange(1, 1000), default=16, show_default=True, help="Nodes with eight A100.")
@click.option("--weekends", type=click.IntRange(1, 4), default=1, show_default=True, help="How many of them.")
def idle_weekend(*, nodes: int, weekends: int) -> None:
    """Write the usage recording of a fleet that trains until Friday, 18:00, and holds its GPUs until Monday, 06:00.

    The agent's own code counts, over a clock that is put forward by a minute at a time; the readings are given.
    """
    from kgpu.lab.idle_weekend import recording

    for line in recording(nodes=nodes, weekends=weekends):
        click.echo(line, nl=False)
