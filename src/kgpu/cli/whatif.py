"""``kgpu whatif``: where pods would go after a change to the cluster; nothing is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.cli import _complete
from kgpu.cli._cluster_objects import objects_of, seen
from kgpu.cli._common import ExampleCommand, check_kubeconfig, output_option, print_json, run_async
from kgpu.cli._manifest_fields import check_fields
from kgpu.cli._manifests import read_manifests
from kgpu.cli._own_namespace import context_namespace
from kgpu.cli._recordings import cluster_prices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgpu.placement.answer import NodeHour
    from kgpu.usage.price_file import PriceList

EXAMPLES: Final = """
kgpu whatif --drain gpu-7
kgpu whatif --add-nodes p5.48xlarge=2 -f train.yaml --gang
kgpu whatif --add-nodes gpu-7=3 -o json | jq '.pods[] | select(.node == null)'
kgpu whatif -f serve.yaml --count 20 --pack
kgpu whatif --mig gpu-3=all-1g.10gb --scale ml/Deployment/serve=14
kgpu whatif --replicas gpu-3=4
kgpu whatif --quota ml requests.nvidia.com/gpu=16 -f train.yaml
kgpu whatif --defrag-for 8
kgpu whatif --snapshot cluster.tar.gz --drain gpu-7
"""
NOT_ALL: Final = 3


@click.command("whatif", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--snapshot", default="", metavar="FILE", help="Ask an archive of `kgpu collect` or a dump, no cluster.")
@click.option("--add-nodes", multiple=True, metavar="TYPE_OR_NODE=N", shell_complete=_complete.nodes,
              help="N more nodes like this one, or of this instance type. Repeatable, as all below.")  # fmt: skip
@click.option("--drain", multiple=True, metavar="NODE", help="Cordon a node and move its pods.",
              shell_complete=_complete.nodes)  # fmt: skip
@click.option("--mig", multiple=True, metavar="NODE=LAYOUT", shell_complete=_complete.nodes,
              help="Cut its GPUs: all-1g.10gb, all-balanced, all-disabled, 3g.40gb:1,1g.10gb:4.")  # fmt: skip
@click.option("--replicas", multiple=True, metavar="NODE=N", shell_complete=_complete.nodes,
              help="Offer each of its devices N times.")  # fmt: skip
@click.option("--quota", multiple=True, nargs=2, metavar="NS[/QUOTA] KEY=AMOUNT",
              help="Another limit of a ResourceQuota: ml requests.nvidia.com/gpu=16, or =none.")  # fmt: skip
@click.option("--scale", multiple=True, metavar="NS/KIND/NAME=N", help="Another number of pods of a workload.")
@click.option("-f", "files", multiple=True, metavar="FILE", help="Submit the pods of a manifest (-: standard input).")
@click.option("--count", type=click.IntRange(1, 20_000), default=1, show_default=True, help="Submit it so many times.")
@click.option("--gang", is_flag=True, help="All submitted pods or none of them.")
@click.option("-n", "--namespace", default="", metavar="NS",
              help="Of submitted pods that name none.  [default: that of the kubeconfig's context]",
              shell_complete=_complete.namespaces)  # fmt: skip
@click.option("--defrag-for", type=click.IntRange(1, 1024), default=None, metavar="K",
              help="Plan the fewest moves that free K devices on one node.")  # fmt: skip
@click.option("--resource", default="", metavar="NAME", help="For --defrag-for: of which resource.  [default: the"
              " one that nodes offer most of]")  # fmt: skip
@click.option("--pack", is_flag=True, help="Fill nodes up (MostAllocated); the default scheduler spreads.")
@click.option(
    "--prices",
    default="",
    metavar="FILE",
    help="Your prices, CSV or YAML; they go before kgpu's own. Default: the cluster's list.",
)
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option()
@click.pass_context
def whatif(
    context: click.Context, *, snapshot: str, add_nodes: tuple[str, ...], drain: tuple[str, ...], mig: tuple[str, ...],
    replicas: tuple[str, ...], quota: tuple[tuple[str, str], ...], scale: tuple[str, ...], files: tuple[str, ...],
    count: int, gang: bool, namespace: str, defrag_for: int | None, resource: str, pack: bool, prices: str,
    kubeconfig: str, output: str,
) -> None:  # fmt: skip
    """Say where every pod would go after a change, or why it would not, and what that does to room and cost.

    By kube-scheduler's own filters and scores. Reads, and changes nothing. Pods that wait now are placed too. Changes
    are made in the order of these options. Exit code 3: not all pods that the change is about get a node, the API
    server would refuse them, or there is no plan.
    """
    from kgpu.placement import render
    from kgpu.placement.answer import answer
    from kgpu.placement.question import WhatIfQuestion
    from kgpu.placement.state import READS
    from kgpu.usage.price_file import read_prices

    if not files and (gang or count != 1):
        raise ConfigError("--gang and --count are about submitted pods", "-f FILE", "name a manifest with -f")
    if resource and defrag_for is None:
        raise ConfigError("--resource is for --defrag-for", "both", "leave --resource out, or say --defrag-for K")
    check_kubeconfig(context, kubeconfig)
    namespace = namespace or (context_namespace(kubeconfig) if files and not snapshot else "default")
    asked = WhatIfQuestion(
        add_nodes=add_nodes, drain=drain, mig=mig, replicas=replicas, quota=quota, scale=scale,
        manifests=read_manifests(files), count=count, gang=gang, namespace=namespace, defrag_for=defrag_for or 0,
        resource=resource, pack=pack,
    )  # fmt: skip
    own = read_prices(prices) if prices else None
    cluster = run_async(seen(snapshot, kubeconfig, READS))
    if not (prices or snapshot):
        own, problem = run_async(cluster_prices(kubeconfig))
        if problem:
            click.echo(f"note: {one_line(problem, 1000)}", err=True)
    doubts = check_fields(asked.manifests, objects_of(cluster, ("Node",)))
    found = answer(asked, objects_of(cluster, READS), BookPrices(own))
    found = replace(found, notes=(*doubts, *found.notes))
    for gap in () if snapshot else cluster.missing:
        click.echo(one_line(f"note: not seen: {gap.what} ({gap.why})"), err=True)
    if output == "json":
        print_json(render.as_data(found))
    else:
        click.echo(render.as_text(found))
    context.exit(0 if found.holds else NOT_ALL)


class BookPrices:
    """What nodes cost, by the lists that ``kgpu usage`` goes by."""

    def __init__(self, own: PriceList | None) -> None:
        from kgpu.usage.prices import PriceBook

        self._book = PriceBook(own)
        self.currency = self._book.currency

    def hour(self, labels: Mapping[str, str], provider_id: str, gpus: int) -> NodeHour:
        from kgpu.formats.names import LABEL_GPU_PRODUCT
        from kgpu.placement.answer import NodeHour
        from kgpu.usage.nodes import priced_by_labels

        price = self._book.price(priced_by_labels(labels, provider_id, gpus), labels.get(LABEL_GPU_PRODUCT, ""))
        return NodeHour(per_hour=price.per_gpu_hour * gpus, source=price.source, assumed=price.assumed)
