"""``kgpu collect``: all evidence for the doctor in one archive, free of secrets, to be looked at elsewhere."""

from __future__ import annotations

from typing import Final

import click

from kgpu.cli._common import ExampleCommand, check_kubeconfig, run_async

EXAMPLES: Final = """
kgpu collect -o cluster.tar.gz
kgpu collect --host -o node.tar.gz
kgpu doctor --from cluster.tar.gz
"""
DEFAULT: Final = "kgpu-collect.tar.gz"


@click.command("collect", cls=ExampleCommand, examples=EXAMPLES)
@click.option(
    "-o", "--output", "file", default=DEFAULT, show_default=True, metavar="FILE", help="The archive to write."
)
@click.option("--host", is_flag=True, help="Of this machine itself, not of the cluster: run it on the node.")
@click.option("--root", default="/", show_default=True, metavar="DIR", help="With --host: where the host's root is.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.pass_context
def collect(context: click.Context, *, file: str, host: bool, root: str, kubeconfig: str) -> None:
    """Write what `kgpu doctor` would look at into one archive: objects, events, logs, host facts.

    Needs no more than rights to read. Secrets are never read; values of environment variables and what looks like a
    credential are taken out before anything is written, and so is the data of ConfigMaps that no rule of the doctor
    reads.
    """
    from kgpu.cli.doctor import check_root, snapshot_of
    from kgpu.doctor import config_maps
    from kgpu.doctor.archive import write

    check_kubeconfig(context, kubeconfig)
    snapshot = run_async(snapshot_of("", kubeconfig, root if host else ""))
    check_root(snapshot, root if host else "")
    size = write(snapshot, file)
    looked = ", ".join(f"{count} {what}" for what, count in snapshot.counts().items() if count)
    click.echo(f"{file}: {size // 1024 + 1} KiB; {looked}")
    if without := config_maps.left_out(snapshot):
        click.echo(
            f"left out: the data of {without} ConfigMaps that no rule of kgpu doctor reads; their keys are in it"
        )
    for gap in snapshot.missing:
        click.echo(f"not in it: {gap.what}" + (f" ({gap.why})" if gap.why else ""))
    click.echo(f"look at it with: kgpu doctor --from {file}")
