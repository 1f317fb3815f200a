"""``kgpu overview``: a page about the cluster's GPUs, served on this machine for a browser of its user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.cli._common import ExampleCommand, check_kubeconfig, run_async

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgpu.lab.port import Lab

EXAMPLES: Final = """
kgpu overview
kgpu overview --open
kgpu overview --port 8080 --kubeconfig ~/.kube/config
kgpu overview --lab lab
"""


def _labs(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from kgpu.lab.folders import names

    del context, param
    return [name for name in names() if name.startswith(incomplete)]


@click.command("overview", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, metavar="N",
              help="Where to listen on 127.0.0.1; 0 takes a free port.")  # fmt: skip
@click.option("--open/--no-open", "opens", default=False, help="Open the link in a browser.")
@click.option("--lab", "lab_name", default="", metavar="NAME", shell_complete=_labs,
              help="Show that lab, with buttons that break and repair its GPUs.")  # fmt: skip
@click.option("--lab-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="The lab's folder, where it is not in the usual place.")  # fmt: skip
@click.pass_context
def overview(
    context: click.Context, *, kubeconfig: str, port: int, opens: bool, lab_name: str, lab_dir: Path | None
) -> None:
    """Serve a page about the cluster's GPUs: what is broken, who holds what, what is unused, what waits and why.

    It is served on this machine alone, to the browser that opens the link first, and shows what your kubeconfig may
    see. It goes on until Ctrl-C, and reads the cluster only while somebody looks. Nothing is changed; only --lab has
    buttons, for the simulated GPUs of a lab.
    """
    check_kubeconfig(context, kubeconfig)
    run_async(_serve(kubeconfig, port, opens=opens, lab=_lab(lab_name, lab_dir)))


async def _serve(kubeconfig: str, port: int, *, opens: bool, lab: Lab | None) -> None:
    import os

    from kgpu.kube.client import connect
    from kgpu.overview.cluster import ClusterWorld
    from kgpu.overview.lab_actions import LabGpus
    from kgpu.overview.run import serve
    from kgpu.top.cluster import ClusterSource
    from kgpu.top.exporters import Exporters
    from kgpu.top.find import Via

    kubeconfig = str(lab.about.kubeconfig) if lab else kubeconfig
    api = connect(kubeconfig)
    inside = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    source = ClusterSource(api, Exporters(api), via=Via.AUTO, inside=inside)
    gpus = LabGpus(lambda: _roots(lab)) if lab else None
    await serve(source, ClusterWorld(api, kubeconfig), port=port, opened=lambda url: _say(url, opens=opens), lab=gpus)


def _say(url: str, *, opens: bool) -> None:
    click.echo(url)
    click.echo("Open this link in a browser; it holds once. Ctrl-C ends the page.", err=True)
    if opens:
        import webbrowser

        if not webbrowser.open(url):
            click.echo("kgpu overview: no browser was found; open the link yourself", err=True)


def _lab(name: str, folder: Path | None) -> Any:
    """The running lab that was named, None without one. Raises LabError."""
    if not name and folder is None:
        return None
    from kgpu.cli._lab import open_lab, require_running

    lab = open_lab(name or "lab", folder)
    require_running(lab, folder)
    return lab


def _roots(lab: Lab) -> Mapping[str, Path]:
    return {each.node: each.root for each in lab.hardware()}
