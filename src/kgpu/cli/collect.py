"""``kgpu collect``: all evidence for the doctor in one archive, free of secrets, to be looked at elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _complete
from kgpu.cli._common import ExampleCommand, check_kubeconfig, run_async

if TYPE_CHECKING:
    from kgpu.doctor.snapshot import Snapshot

EXAMPLES: Final = """
kgpu collect -o cluster.tar.gz
kgpu collect --node gpu-7 -o gpu-7.tar.gz
kgpu collect --node gpu-7 --max-bytes 500000 -o - | ssh support 'cat > gpu-7.tar.gz'
kgpu collect --host -o node.tar.gz
kgpu doctor --from cluster.tar.gz
"""
DEFAULT: Final = "kgpu-collect.tar.gz"
STDOUT: Final = "-"
MIN_BYTES: Final = 16 * 1024


@click.command("collect", cls=ExampleCommand, examples=EXAMPLES)
@click.option(
    "-o",
    "--output",
    "file",
    default=DEFAULT,
    show_default=True,
    metavar="FILE",
    help="The archive to write; - for stdout.",
)
@click.option(
    "--node", default="", metavar="NODE", help="Only what is about that node.", shell_complete=_complete.nodes
)
@click.option(
    "--namespace",
    "-n",
    "namespaces",
    multiple=True,
    metavar="NS",
    help="With --node: events and logs of pods in this namespace alone; may be repeated. Default: of all on the node.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=MIN_BYTES),
    metavar="N",
    help="The most bytes that the archive may have; what matters least is left out.",
)
@click.option("--host", is_flag=True, help="Of this machine itself, not of the cluster: run it on the node.")
@click.option("--root", default="/", show_default=True, metavar="DIR", help="With --host: where the host's root is.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.pass_context
def collect(
    context: click.Context, *, file: str, node: str, namespaces: tuple[str, ...], max_bytes: int | None, host: bool,
    root: str, kubeconfig: str,
) -> None:  # fmt: skip
    """Write what `kgpu doctor` would look at into one archive: objects, events, logs, host facts.

    Needs no more than rights to read. Secrets are never read; values of environment variables and what looks like a
    credential are taken out before anything is written, and so is the data of ConfigMaps that no rule of the doctor
    reads.
    """
    from kgpu.cli.doctor import check_root, snapshot_of
    from kgpu.doctor.archive import pack, save, write

    _check(node, namespaces, host=host)
    check_kubeconfig(context, kubeconfig)
    looking = _of_node(node, kubeconfig, namespaces) if node else snapshot_of("", kubeconfig, root if host else "")
    snapshot = run_async(looking)
    check_root(snapshot, root if host else "")
    left_out: tuple[str, ...] = ()
    if file == STDOUT or max_bytes:
        data, left_out = pack(snapshot, max_bytes or 0)
        size = to_stdout(data) if file == STDOUT else save(data, file)
    else:
        size = write(snapshot, file)
    _report(snapshot, file, size, left_out)


def _check(node: str, namespaces: tuple[str, ...], *, host: bool) -> None:
    if node and host:
        raise ConfigError("--node and --host exclude each other", "one of the two", "leave one out")
    if namespaces and not node:
        raise ConfigError("--namespace is for --node", "a node's name", "add --node NODE, or leave --namespace out")


async def _of_node(node: str, kubeconfig: str, namespaces: tuple[str, ...]) -> Snapshot:
    from kgpu.cli.doctor import xids_in
    from kgpu.doctor.sources.of_node import collect_of_node
    from kgpu.kube.client import connect
    from kgpu.kube.pod_logs import PodLogs

    api = connect(kubeconfig)
    try:
        where = frozenset(namespaces) if namespaces else None
        return (await collect_of_node(api, node, namespaces=where, logs=PodLogs(api))).judged(xids_in)
    finally:
        await api.close()


def to_stdout(data: bytes) -> int:
    """Write an archive to stdout, and return its size. Raises ConfigError if that is a terminal."""
    if sys.stdout.isatty():
        raise ConfigError("the archive would go to a terminal", "a pipe or a file", "give -o FILE, or redirect stdout")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return len(data)


def _report(snapshot: Snapshot, file: str, size: int, left_out: tuple[str, ...]) -> None:
    """Say what is in the archive, and what is not: on stderr where the archive itself goes to stdout."""
    from kgpu.base.printable import all_counted, counted
    from kgpu.doctor import config_maps

    err = file == STDOUT
    looked = all_counted(snapshot.counts())
    click.echo(f"{'stdout' if err else file}: {size // 1024 + 1} KiB; {looked}", err=err)
    if without := config_maps.left_out(snapshot):
        maps = counted(without, "ConfigMap")
        words = f"left out: the data of {maps} that no rule of kgpu doctor reads; their keys are kept"
        click.echo(words, err=err)
    for name in left_out:
        click.echo(f"left out, as it was too large: {name}", err=err)
    for gap in snapshot.missing:
        click.echo(f"not in it: {gap.what}" + (f" ({gap.why})" if gap.why else ""), err=err)
    click.echo(f"look at it with: kgpu doctor --from {file}", err=err)
