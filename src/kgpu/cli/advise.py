"""``kgpu advise``: which way to share GPUs, as a table, and what the nodes of a cluster can do."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean, one_of
from kgpu.cli import _complete
from kgpu.cli._common import ExampleGroup, check_kubeconfig, output_option, print_json, run_async
from kgpu.cli._rights import NODES, needing

if TYPE_CHECKING:
    from kgpu.advise.answer import SharingAnswer
    from kgpu.advise.read import ReadGpus

EXAMPLES: Final = "kgpu advise sharing\nkgpu advise sharing --need isolation\nkgpu advise nodepool gpu-a100"
SHARING: Final = """
kgpu advise sharing
kgpu advise sharing --no-cluster
kgpu advise sharing --node gpu-7
kgpu advise sharing --need isolation
kgpu advise sharing -o json | jq '.cluster.kinds[] | {product, ways}'
"""
WORKLOAD: Final = """
kgpu advise workload ml/serve
kgpu advise workload ml/serve --since 14d
kgpu advise workload ml/serve --from usage.jsonl
kgpu advise workload ml/serve --from usage.jsonl --neighbours trusted -o json
"""
NOT_ENOUGH: Final = 3
NODEPOOL: Final = """
kgpu advise nodepool gpu-a100
kgpu advise nodepool gpu-a100 -o json | jq .set
kgpu advise nodepool gpu-a100 --snapshot cluster.tar.gz
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


@advise.command("workload", examples=WORKLOAD)
@click.argument("name", metavar="NAMESPACE/NAME")
@click.option("--from", "file", default="", metavar="FILE",
              help="A recording to read in place of the cluster's; - is standard input.")  # fmt: skip
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option("--context", "kube_context", default="", metavar="NAME", help="The kubeconfig's context to use.")
@click.option("--since", default="", metavar="TIME", help="From when: 2026-07-20T08:00:00Z, or 7d before its end.")
@click.option("--until", default="", metavar="TIME", help="Until when, written the same way.")
@click.option("--neighbours", type=click.Choice(("untrusted", "trusted")), default="untrusted", show_default=True,
              help="With whom it would share: trusted ones are of the same owner and promise.")  # fmt: skip
@click.option(
    "--prices",
    default="",
    metavar="FILE",
    help="Your prices, CSV or YAML; they go before kgpu's own. Default: the cluster's list.",
)
@output_option()
@click.pass_context
def workload(
    context: click.Context, *, name: str, file: str, kubeconfig: str, kube_context: str, since: str, until: str,
    neighbours: str, prices: str, output: str,
) -> None:  # fmt: skip
    """Say which way of sharing is right for a workload, from what its pods have used in three days or more.

    NAME is that of what made the pods (a Deployment, a Job), or of a pod. What they have used is read from the
    Deployment kgpu-usage where there is one, else from the nodes' agents, as in `kgpu usage`. The first row of the
    table in docs/how-to/right-size-a-workload.md that holds is taken; never by utilisation alone. Exit code 3: not
    enough data.
    """
    from kgpu.advise import strategy_text
    from kgpu.advise.strategy import WorkloadCase
    from kgpu.cli._recordings import recorded, window
    from kgpu.usage.measure import measure
    from kgpu.usage.price_file import read_prices
    from kgpu.usage.prices import PriceBook
    from kgpu.usage.recording import read
    from kgpu.usage.segments import timeline
    from kgpu.usage.workload_price import workload_price

    namespace, slash, own = name.partition("/")
    if not (namespace and slash and own):
        raise ConfigError(
            f"{one_line(name, 120)} is no NAMESPACE/NAME", "for example ml/serve", "say where the workload is"
        )
    if not file:
        check_kubeconfig(context, kubeconfig)
    if file:
        recording, listed = read(file), None
    else:
        recording, listed = run_async(recorded(kubeconfig, kube_context, since, priced=not prices))
    times = timeline(recording)
    for advice in times.advice:
        click.echo(f"note: {advice.one_line()}", err=True)
    between = window(times, since, until)
    use = measure(times, namespace, own, *between)
    if use is None:
        where = f" --from {file}" if file else ""
        raise ConfigError(
            f"{file or 'what the cluster has recorded'} has nothing of {one_line(name, 120)}"
            + (" in that time" if since or until else ""),
            "a workload whose pods held GPUs in the recording", f"see who did: kgpu usage{where} --by owner",
        )  # fmt: skip
    price = workload_price(times, PriceBook(read_prices(prices) if prices else listed), namespace, own, between)
    assert price is not None, "what was measured was held"
    found = strategy_text.advise(
        name, WorkloadCase(use=use, trusted=neighbours == "trusted"), per_gpu_hour=price.per_gpu_hour,
        currency=price.currency, price_sources=price.sources,
    )  # fmt: skip
    if output == "json":
        print_json(strategy_text.as_data(found))
    else:
        click.echo(strategy_text.as_text(found))
    context.exit(0 if found.chosen is not None else NOT_ENOUGH)


@advise.command("nodepool", examples=NODEPOOL)
@click.argument("pool", metavar="POOL")
@click.option("--snapshot", default="", metavar="FILE", help="Ask an archive of `kgpu collect` or a dump, no cluster.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option()
@click.pass_context
def nodepool(context: click.Context, *, pool: str, snapshot: str, kubeconfig: str, output: str) -> None:
    """Print what an autoscaler has to be told of a pool of GPU nodes, so that it can make the first one.

    Tags of an Auto Scaling group or scale set, annotations of a MachineDeployment, or parts of a Karpenter NodePool and
    NodeOverlay, from what the pool's nodes offer now. Reads, and changes nothing.
    """
    from kgpu.advise import pool_text
    from kgpu.advise.pools import facts, pools
    from kgpu.cli._cluster_objects import objects_of, seen

    check_kubeconfig(context, kubeconfig)
    objects = list(objects_of(run_async(seen(snapshot, kubeconfig, ("Node", "Pod"))), ("Node", "Pod")))
    found = pools(objects)
    if pool not in found:
        raise _no_pool(pool, found)
    known = facts(pool, found[pool], (obj for obj in objects if obj.get("kind") == "Pod"))
    if output == "json":
        print_json(pool_text.as_data(known))
    else:
        click.echo(pool_text.as_text(known))


def _no_pool(pool: str, found: Collection[str]) -> ConfigError:
    from kgpu.formats.names import NODE_POOL_LABELS

    what = f"no node is of a pool {one_line(pool, 80)}"
    if not found:
        labels = ", ".join(NODE_POOL_LABELS)
        return ConfigError(
            f"{what}, nor of any other", f"nodes with one of the labels {labels}", "label the pool's nodes"
        )
    near = did_you_mean(pool, found)
    return ConfigError(
        what + (f"; {near}" if near else ""), f"one of {', '.join(sorted(found))}", "correct the name"
    )  # fmt: skip


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
        async with needing(NODES, api):
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
                one_of(name, there) if there else "a node",
                "correct --node: kubectl get nodes",
            )
