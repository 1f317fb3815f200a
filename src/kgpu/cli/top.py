"""``kgpu top``: the GPUs of a cluster, or of this node, with who uses them; live, once, or as JSON."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError, HwError, KubeError
from kgpu.base.printable import one_line
from kgpu.cli import _complete
from kgpu.cli._common import ExampleCommand, check_kubeconfig, output_option, print_json, root_option, run_async
from kgpu.cli._credentials import basic_auth, trusting

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgpu.top.columns import DrawingStyle
    from kgpu.top.rows import Wish
    from kgpu.top.run import NodeWatch
    from kgpu.top.source import GpuNodeSource

EXAMPLES: Final = """
kgpu top
kgpu top --once --sort memory
kgpu top --view pods -n training
kgpu top --node gpu-07 --node gpu-08
kgpu top -o json | jq '.nodes[].gpus[] | select(."utilization.gpu" == 0)'
kgpu top --exporter-namespace monitoring
kgpu top --host
kgpu top --exporter gpu-07=10.0.3.7:9400 --exporter http://10.0.3.8:9400
"""
SHORTEST: Final = 0.25
PIPE_WIDTH: Final = 240
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
SORTS: Final = "natural, user, utilization, memory, power, temperature, idle, health"


@click.command("top", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option("--context", "kube_context", default="", metavar="NAME", help="The kubeconfig's context to use.")
@click.option("-n", "--namespace", multiple=True, metavar="NS", help="Only GPUs that pods of NS use. Repeatable.",
              shell_complete=_complete.namespaces)  # fmt: skip
@click.option("--node", multiple=True, metavar="NAME", help="Only this node; others are not asked. Repeatable.",
              shell_complete=_complete.nodes)  # fmt: skip
@click.option("--filter", "words", default="", metavar="WORDS",
              help="Only GPUs of which every word is somewhere: node, model, uuid, namespace, pod, state.")  # fmt: skip
@click.option("--sort", default="natural", show_default=True, metavar="BY", help=f"One of: {SORTS}.",
              shell_complete=_complete.sorts)  # fmt: skip
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--view", type=click.Choice(("gpus", "nodes", "pods")), default="gpus", show_default=True,
              help="What the rows are.")  # fmt: skip
@click.option("--detail", type=click.Choice(("auto", "full", "compact")), default="auto", show_default=True,
              help="What stands under a GPU: MIG instances and shared use; everybody; nothing.")  # fmt: skip
@click.option("-1", "--once", is_flag=True, help="One look, all rows. So it is too where the output is no terminal.")
@click.option("-i", "--interval", type=click.FloatRange(min=SHORTEST), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two readings of a node, at the least.")  # fmt: skip
@click.option("--host", is_flag=True, help="This node's own driver, without a cluster; with processes.")
@root_option
@click.option(
    "--exporter", multiple=True, metavar="[NAME=]URL", help="An exporter by address, without a cluster. Repeatable."
)
@click.option("--exporter-namespace", multiple=True, metavar="NS", shell_complete=_complete.namespaces,
              help="Where the cluster's exporters run; no others are asked. Repeatable. Default: kgpu's.")  # fmt: skip
@click.option("--via", type=click.Choice(("auto", "direct", "proxy")), default="auto", show_default=True,
              help="How to reach exporters: at their pods' address, or through the API server.")  # fmt: skip
@click.option("--scheme", type=click.Choice(("http", "https")), default="http", show_default=True,
              help="What the cluster's exporters speak.")  # fmt: skip
@click.option("--ca-file", default="", metavar="FILE", help="Whom to trust for exporters with TLS.")
@click.option(
    "--auth-file", default="", metavar="FILE", help="USER:PASSWORD, sent to the exporters asked (not by proxy)."
)
@click.option("--gpu-util-thresh", nargs=2, type=click.IntRange(0, 100), default=(10, 75), show_default=True,
              help="From where on activity is moderate, and heavy, in percent.")  # fmt: skip
@click.option("--mem-util-thresh", nargs=2, type=click.IntRange(0, 100), default=(10, 80), show_default=True,
              help="The same for memory.")  # fmt: skip
@click.option("--ascii", "ascii_only", is_flag=True, help="Bars of plain characters.")
@click.option("--color/--no-color", default=None, help="Default: where the terminal has colours and NO_COLOR is unset.")
@output_option()
@click.pass_context
def top(context: click.Context, /, **options: Any) -> None:
    """Show every GPU, what it does, who uses it and how it is.

    Reads the metrics exporters of the nodes: through the API server, or directly where this runs in the cluster. Only
    pods of kgpu's namespace count as exporters, or of those named by --exporter-namespace. A node that can't be read is
    a line that says why. Keys: h shows them.
    """
    check_kubeconfig(context, options["kubeconfig"])
    # A driver root on the command line means this node; one in the environment is there for other commands as well.
    named = context.get_parameter_source("root") is click.core.ParameterSource.COMMANDLINE
    options["host_flag"] = "--host" if options["host"] else "--root"
    options["host"] = options["host"] or (named and bool(options["root"]))
    if options["host"] and options["exporter"]:
        raise ConfigError("--host and --exporter are two different sources", "one of them", "leave one out")
    wrong = next(
        (namespace for namespace in options["exporter_namespace"] if not _NAMESPACE.fullmatch(namespace)), None
    )
    if wrong is not None:
        raise ConfigError(
            f'"{one_line(wrong, 80)}" is no namespace', "a namespace's name", "correct --exporter-namespace"
        )
    if options["exporter_namespace"] and (options["host"] or options["exporter"]):
        raise ConfigError(
            "--exporter-namespace is about a cluster's exporters", "neither --host nor --exporter",
            "leave one out",
        )  # fmt: skip
    run_async(_top(options))


async def _top(options: dict[str, Any]) -> None:
    from kgpu.top.columns import DrawingStyle
    from kgpu.top.rows import Detail, TableView, Wish
    from kgpu.top.run import NodeWatch
    from kgpu.top.sorts import check_sort

    wish = Wish(
        view=TableView(options["view"]), detail=Detail(options["detail"]), sort=check_sort(options["sort"]),
        reverse=options["reverse"], words=options["words"], nodes=frozenset(options["node"]),
        namespaces=frozenset(options["namespace"]),
    )  # fmt: skip
    look = DrawingStyle(
        ascii_only=options["ascii_only"], busy=options["gpu_util_thresh"], memory=options["mem_util_thresh"]
    )
    source, notes = _source(options)
    watch = NodeWatch(source, only=wish.nodes)
    try:
        if options["output"] == "json" or options["once"] or not sys.stdout.isatty():
            await _once(watch, wish, look, notes, options)
        else:
            from kgpu.top.live import LiveTop

            await LiveTop(_console(options), watch, wish, look, interval=options["interval"], notes=notes).run()
    finally:
        await watch.close()
        await source.close()


async def _once(
    watch: NodeWatch, wish: Wish, look: DrawingStyle, notes: Callable[[], tuple[str, ...]], options: dict[str, Any]
) -> None:
    import time

    from kgpu.top.history import GpuHistory
    from kgpu.top.plan import plan

    await watch.once()
    # One reading makes no history, and says of no GPU for how long it has been idle.
    screen = plan(watch.nodes.values(), wish, GpuHistory(), time.monotonic())
    for note in notes():
        click.echo(f"kgpu top: {note}", err=True)
    if options["output"] == "json":
        from kgpu.top.report import report

        print_json(report(watch.nodes.values(), screen, wish, at=time.time()))
        return
    from kgpu.top import draw

    console = _console(options)
    lines = draw.summary(screen, console.width, look)
    lines += draw.table(screen.rows, wish.view, console.width, look, cut_troubles=False)
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)


def _console(given: dict[str, Any]) -> Any:
    from rich.console import Console

    color = given["color"]
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(
        width=width, highlight=False, markup=False, emoji=False, no_color=True if color is False else None,
        force_terminal=True if color else None,
    )  # fmt: skip


def _source(options: dict[str, Any]) -> tuple[GpuNodeSource, Callable[[], tuple[str, ...]]]:
    """Where nodes come from, and what could not be read there. Raises UserError."""
    if options["host"]:
        return _host(options["root"], flag=options["host_flag"]), tuple
    from kgpu.top.exporters import Exporters, NamedExporters, parse_address

    headers = basic_auth(options["auth_file"])
    tls = trusting(options["ca_file"], "--ca-file") if options["ca_file"] else None
    if options["exporter"]:
        urls = [parse_address(text) for text in options["exporter"]]
        return NamedExporters(dict(urls), Exporters(headers=headers, context=tls)), tuple
    from kgpu.kube.client import connect
    from kgpu.top.cluster import ClusterSource
    from kgpu.top.find import Via

    try:
        api = connect(options["kubeconfig"], context=options["kube_context"])
    except KubeError as error:
        remedy = f"{error.remedy}; without a cluster: --host for this node's GPUs, --exporter for others'"
        raise KubeError(error.what, error.expected, remedy) from error
    inside = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    exporters = Exporters(api, headers=headers, context=tls)
    cluster = ClusterSource(
        api, exporters, via=Via(options["via"]), inside=inside, scheme=options["scheme"],
        namespaces=frozenset(options["exporter_namespace"]),
    )  # fmt: skip
    return cluster, lambda: cluster.notes


def _host(root: str, *, flag: str) -> GpuNodeSource:
    from pathlib import Path

    from kgpu.hw.open import NoHardwareError, open_reader
    from kgpu.hw.verdicts import VerdictFile, verdicts_path
    from kgpu.top.host import HostSource

    verdicts = VerdictFile(verdicts_path("/", os.environ))
    try:
        return HostSource(open_reader(driver_root=Path(root) if root else None), verdicts=verdicts)
    except NoHardwareError as error:
        raise HwError(error.what, error.expected, f"{error.remedy}; for the cluster's GPUs leave {flag} out") from error
