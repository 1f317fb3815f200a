"""``kgpu advise``: which way to share GPUs, as a table, and what the nodes of a cluster can do."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.cli import _complete
from kgpu.cli._common import ExampleGroup, check_kubeconfig, output_option, print_json, run_async

if TYPE_CHECKING:
    from kgpu.advise.answer import SharingAnswer
    from kgpu.advise.read import ReadGpus

EXAMPLES: Final = "kgpu advise sharing\nkgpu advise sharing --need isolation"
SHARING: Final = """
kgpu advise sharing
kgpu advise sharing --no-cluster
kgpu advise sharing --node gpu-7
kgpu advise sharing --need isolation
kgpu advise sharing -o json | jq '.cluster.kinds[] | {product, ways}'
"""
# As kgpu.advise.ways has them: help and completion come without importing that.
NEED_WORDS: Final = ("isolation", "memory-limit", "throughput", "many-small", "whole-gpu", "by-attribute")


@click.group("advise", cls=ExampleGroup, examples=EXAMPLES)
def advise() -> None:
    """Which way of several to take, with reasons, before anything is set up."""


@advise.command("sharing", examples=SHARING)
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option("--context", "kube_context", default="", metavar="NAME", help="The kubeconfig's context to use.")
@click.option("--no-cluster", is_flag=True, help="The table alone; no cluster is looked at.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="What this node can do, without the table."
              " Repeatable.", shell_complete=_complete.nodes)  # fmt: skip
@click.option("--need", default=None, type=click.Choice(NEED_WORDS),
              help="What matters most: which way answers it, here, without the table.")  # fmt: skip
@output_option()
@click.pass_context
def sharing(
    context: click.Context, *, kubeconfig: str, kube_context: str, no_cluster: bool, nodes: tuple[str, ...],
    need: str | None, output: str,
) -> None:  # fmt: skip
    """Compare the ways to share a GPU: whole, time-slicing, MPS, MIG, DRA; and say what each node's GPUs can do.

    Reads Nodes and ResourceSlices and changes nothing. Where no cluster answers, the table comes alone, with the
    reason. JSON has the table in any case, with the source of each row.
    """
    check_kubeconfig(context, kubeconfig)
    if no_cluster and nodes:
        raise ConfigError("--node asks a cluster, and --no-cluster forbids it", "one of the two", "leave one out")
    found = _answer(kubeconfig, kube_context, nodes, need, cluster=not no_cluster)
    if output == "json":
        from kgpu.advise.answer import as_data

        print_json(as_data(found))
        return
    from kgpu.advise.render import as_text
    from kgpu.cli.doctor import width

    click.echo(as_text(found, width=width(), color=sys.stdout.isatty()))


def _answer(
    kubeconfig: str, kube_context: str, nodes: tuple[str, ...], need: str | None, *, cluster: bool
) -> SharingAnswer:
    """Look and decide. Raises KubeError where nodes are named and no cluster answers, ConfigError for unknown ones."""
    from kgpu.advise.answer import SharingAnswer, answer
    from kgpu.advise.ways import NEED_BY_KEY

    wish = NEED_BY_KEY[need] if need is not None else None
    table = not (nodes or wish)
    if not cluster:
        return SharingAnswer(need=wish, table=table, why="--no-cluster")
    try:
        read = run_async(_read(kubeconfig, kube_context))
    except KubeError as error:
        if nodes:
            raise
        return SharingAnswer(need=wish, table=table, why=error.one_line())
    _check_nodes(nodes, read.nodes)
    gpus = [one for one in read.gpus if not nodes or one.node in nodes]
    return answer(gpus, read.dra, nodes=nodes or read.nodes, need=wish, table=table)


async def _read(kubeconfig: str, kube_context: str) -> ReadGpus:
    from kgpu.advise.read import read
    from kgpu.kube.client import connect

    api = connect(kubeconfig, context=kube_context)
    try:
        return await read(api)
    finally:
        await api.close()


def _check_nodes(named: Collection[str], there: Collection[str]) -> None:
    """Raises ConfigError for a node that is not there."""
    for name in named:
        if name not in there:
            near = did_you_mean(name, there)
            raise ConfigError(
                f"there is no node {one_line(name, 80)}" + (f"; {near}" if near else ""),
                f"one of {len(there)} there are" if there else "a node",
                "correct --node: kubectl get nodes",
            )
