"""``kgpu lab kubeconfig``: a lab's kubeconfig, alone or as a context of the user's own.

Only parses arguments and prints; the work is in ``kgpu.lab.merged_kubeconfig``, imported when the command runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from kgpu.cli._common import ExampleCommand
from kgpu.cli._lab import open_lab, require_running, which_lab

EXAMPLES = """
export KUBECONFIG=$(kgpu lab kubeconfig)
kgpu lab kubeconfig --merge
kgpu lab kubeconfig --name second --merge
"""


@click.command("kubeconfig", cls=ExampleCommand, examples=EXAMPLES)
@which_lab
@click.option("--merge", "merges", is_flag=True, help="Add the lab to your own kubeconfig, and make it current.")
def kubeconfig(*, name: str, folder: Path | None, merges: bool) -> None:
    """Print the path of a lab's kubeconfig, or add it to your own.

    With --merge the lab becomes the context kgpu-NAME of the first other file of KUBECONFIG, or of ~/.kube/config.
    `kgpu lab down` takes it out again.
    """
    there = open_lab(name, folder)
    require_running(there, folder)
    about = there.about
    if not merges:
        click.echo(str(about.kubeconfig))
        return
    from kgpu.lab import merged_kubeconfig

    own = merged_kubeconfig.users_own(os.environ, about.kubeconfig)
    context = merged_kubeconfig.merge(own, about.kubeconfig, about.name)
    click.echo(f"context {context} is in {own}, and in use")
