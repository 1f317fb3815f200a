"""``kgpu lab``: clusters with simulated accelerators to try kgpu on, and scenarios to play on them.

Only parses arguments and prints; the work is in ``kgpu.lab``, imported when a command runs.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import LabError
from kgpu.cli import _complete_lab
from kgpu.cli._common import ExampleCommand
from kgpu.cli._lab import line, new_lab, open_lab, up_line, which_lab, whose
from kgpu.cli.main import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from kgpu.lab.port import About, Lab

ENTRIES: Final = (
    CommandEntry("up", "kgpu.cli.lab", "up", "Bring a cluster with simulated GPUs up."),
    CommandEntry("run", "kgpu.cli.lab_run", "run", "Play a scenario on it."),
    CommandEntry("status", "kgpu.cli.lab_status", "status", "Show its processes, memory, nodes and GPUs."),
    CommandEntry("list", "kgpu.cli.lab_status", "list_", "List the labs that there are."),
    CommandEntry("reset", "kgpu.cli.lab", "reset", "Repair its GPUs and remove what scenarios left."),
    CommandEntry("kubectl", "kgpu.cli.lab", "kubectl", "Run kubectl against it."),
    CommandEntry(
        "kubeconfig",
        "kgpu.cli.lab_kubeconfig",
        "kubeconfig",
        "Its kubeconfig: the path, or merged into yours.",
    ),
    CommandEntry("down", "kgpu.cli.lab", "down", "Take it down and leave nothing behind."),
    CommandEntry("demo", "kgpu.cli.lab_demo", "demo", "The quickest look: a GPU cluster, and stories played on it."),
    CommandEntry("node", "kgpu.cli.lab_node", "node_group", "Simulated nodes: add, list, remove."),
    CommandEntry("hw", "kgpu.cli.lab_hw", "hw_group", "Simulated GPUs: make a driver root, change it, break it."),
    CommandEntry("conform", "kgpu.cli.lab_run", "conform", "Play scenarios on both kinds of lab and compare."),
    CommandEntry(
        "conformance", "kgpu.cli.lab_conformance", "conformance", "Run Kubernetes' own conformance tests on both."
    ),
    CommandEntry(
        "image", "kgpu.cli.lab_image", "image_group", "kgpu's own container image: make it, load it into a lab."
    ),
    CommandEntry("idle-weekend", "kgpu.cli.lab_idle_weekend", "idle_weekend", "Write a usage recording of idle GPUs."),
    CommandEntry("build", "kgpu.cli.lab_build", "build", "Build ahead of time what the labs are made of."),
)
EXAMPLES = """
kgpu lab up
kgpu lab kubectl get nodes
kgpu lab run first-gpu-pod
kgpu lab node add l4 --count 2
kgpu lab down
"""


@click.group("lab", cls=LazyGroup, entries=ENTRIES, examples=EXAMPLES)
def lab() -> None:
    """Clusters with simulated accelerators, to try kgpu and to test it.

    `kgpu lab up` is the embedded kind: an API server, scheduler and kubelets of kgpu's own, in seconds, without root.
    `kgpu lab up --real` is real Kubernetes (Linux, root). Both run kgpu's own agent on simulated GPUs.
    """


@contextmanager
def told_when_interrupted(lab: Lab, folder: Path | None) -> Iterator[None]:
    """After Ctrl-C, say what still runs and what to do about it."""
    try:
        yield
    except KeyboardInterrupt:
        about = lab.about
        if lab.running:
            text = f'Interrupted. The lab "{about.name}" is incomplete, and what was started of it runs on.\n'
            text += f"  go on:     {up_line(about, folder)}\n  remove it: {line('down', about.name, folder)}"
        else:
            text = "Interrupted. Nothing of the lab runs; programs that were built are kept.\n"
            text += f"  go on: {up_line(about, folder)}"
        click.echo(text, err=True)
        raise


UP_EXAMPLES: Final = """
kgpu lab up
kgpu lab up --operator
kgpu lab up --usage
kgpu lab up --operator --driver container
kgpu lab up --profile l4 --gpus 2 --data ~/my-cluster
kgpu lab up --feature-gates DRADeviceTaintRules=true
kgpu lab up --real --profile dgx-a100-80g --gpus 4
"""


@click.command("up", cls=ExampleCommand, examples=UP_EXAMPLES)
@new_lab
@click.option("--real", is_flag=True, help="Real Kubernetes, built from source on first use (Linux, root).")
@click.option(
    "--profile",
    default="hgx-h100",
    show_default=True,
    shell_complete=_complete_lab.profiles,
    help="The simulated machine; see `kgpu lab hw list`.",
)
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="Number of GPUs. Default: the profile's.")
@click.option("--no-agent", is_flag=True, help="Start no kgpu agent on the node.")
@click.option("--operator", is_flag=True,
              help="Embedded: kgpu's operator runs the agents, as in a real cluster, with the metrics that `kgpu top` "
                   "shows; without it they only offer and label GPUs.")  # fmt: skip
@click.option("--usage", is_flag=True,
              help="Embedded: --operator, with usage.enabled and usage.reclaim.enabled: for `kgpu usage`, `kgpu idle` "
                   "and GPUUsagePolicies, which may stop what is idle in the namespace research.")  # fmt: skip
@click.option("--driver", type=click.Choice(["host", "container"]), default="host", show_default=True,
              help="Embedded: where the node's driver is from: the host, or the operator's container.")  # fmt: skip
@click.option("--no-node", is_flag=True, help="Embedded: begin without a node; see `kgpu lab node add`.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Embedded: keep the cluster's objects in DIR over restarts. Default: in memory.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Embedded: the API server's port. Default: a free one.")
@click.option("--feature-gates", type=click.Choice(["DRADeviceTaintRules=true"]), default=None,
              help="Embedded: what is off by default: DeviceTaintRules (resource.k8s.io/v1alpha3).")  # fmt: skip
@click.option("--install-tools", is_flag=True, help="First install what is missing, with apt-get and pip.")
def up(
    *, name: str, folder: Path | None, real: bool, profile: str, gpus: int | None, no_agent: bool, operator: bool,
    usage: bool, driver: str, no_node: bool, data: Path | None, port: int | None, feature_gates: str | None,
    install_tools: bool,
) -> None:  # fmt: skip
    """Bring a cluster up; what is already there is kept."""
    lab: Lab
    if real:
        _only_embedded({"--no-node": no_node, "--data": data, "--port": port, "--operator": operator, "--usage": usage})
        _only_embedded({"--feature-gates": feature_gates})
        _only_embedded({"--driver container": driver != "host"})
        lab = _real(name, folder, profile=profile, gpus=gpus, agent=not no_agent, install_tools=install_tools)
    else:
        from kgpu.lab import progress
        from kgpu.lab.embedded.lab import EmbeddedLab
        from kgpu.lab.embedded.model import FirstNode

        first = None if no_node else FirstNode(profile=profile, gpus=gpus, agent=not no_agent, driver=driver)
        lab = EmbeddedLab(
            name, folder, progress.for_terminal(), data=data, port=port or 0, first=first, operator=operator,
            gates=feature_gates or "", usage=usage,
        )  # fmt: skip
        if install_tools:
            from kgpu.lab.real import build

            build.ensure_kubectl(lab.progress)
    with told_when_interrupted(lab, folder):
        lab.up()
    nodes = ", ".join(gpu_node.node for gpu_node in lab.hardware()) or "no nodes with GPUs yet"
    click.echo(f"The lab is up: {nodes}, API {lab.about.url}")
    click.echo(f"  export KUBECONFIG={shlex.quote(str(lab.about.kubeconfig))}")
    verbs = (*_stories(lab, first=profile == "hgx-h100" and gpus in {None, 8} and not no_node), "status", "down")
    click.echo("  " + "    ".join(line(verb, name, folder) for verb in verbs))


def _stories(lab: Lab, *, first: bool) -> tuple[str, ...]:
    """The command about stories that a new lab is good for: they are about a node with eight GPUs of NVIDIA.

    ``first``: the lab has that node.
    """
    from kgpu.formats.names import NVIDIA
    from kgpu.lab.nodes.manage import for_stories

    there = lab.hardware()
    if there and not for_stories(there, NVIDIA):
        return ()
    return ("run first-gpu-pod",) if first else ("run --list",)


def _only_embedded(options: dict[str, object]) -> None:
    for option, value in options.items():
        if value:
            raise LabError(f"{option} with --real", f"{option} for an embedded lab", f"leave out --real or {option}")


def _real(
    name: str, folder: Path | None, *, profile: str, gpus: int | None, agent: bool, install_tools: bool
) -> Lab:  # fmt: skip
    from kgpu.lab import find, progress
    from kgpu.lab.port import REAL
    from kgpu.lab.real import bootstrap, build, cluster, hosttools, model

    reporter = progress.for_terminal()
    spec = model.LabSpec(name=name, profile=profile, gpus=gpus, agent=agent)
    find.find(name, folder, kind=REAL)  # refuses an embedded lab of that name
    if install_tools:
        hosttools.require_platform()
        bootstrap.check_hardware(spec)
        build.install_tools(reporter)
    return cluster.RealLab(spec, folder=folder, progress=reporter)


@click.command("down", cls=ExampleCommand, examples="kgpu lab down\nkgpu lab down --name second")
@which_lab
def down(*, name: str, folder: Path | None) -> None:
    """Take the lab down: every process, mount, link, cgroup and file of it. A folder given with --data stays."""
    there = open_lab(name, folder)
    about = there.about
    if there.down():
        click.echo(f'The lab "{about.name}" is down; nothing of it is left.')
        _withdraw_context(about)
    else:
        click.echo(f'There is no lab "{name}" in {there.about.folder}; nothing to do.{whose()}')


def _withdraw_context(about: About) -> None:
    """Take what `kgpu lab kubeconfig --merge` has added out of the user's kubeconfig."""
    from kgpu.lab import merged_kubeconfig

    own = merged_kubeconfig.users_own(os.environ, about.kubeconfig)
    try:
        gone = merged_kubeconfig.withdraw(own, about.name, about.url)
    except LabError as error:  # the lab itself is down
        click.echo(f"its context stays in your kubeconfig: {error.one_line()}", err=True)
        return
    if gone:
        click.echo(f"context {merged_kubeconfig.context_of(about.name)} is gone from {own}")


@click.command("reset", cls=ExampleCommand, examples="kgpu lab reset\nkgpu lab reset --name second")
@which_lab
def reset(*, name: str, folder: Path | None) -> None:
    """Put the lab back to how `up` made it.

    Starts nodes that are off, ends simulated faults with the repairs that they called for, loads put on GPUs by hand
    and MIG slices, puts a moved clock back, removes the scenarios' namespaces and the nodes' configuration label, and
    restores the device plugin's ConfigMap.
    """
    from kgpu.lab import reset as lab_reset

    lab = open_lab(name, folder)
    changes = lab_reset.reset(lab)
    for change in changes:
        click.echo(f"  was: {change}")
    click.echo("The lab is as it was made." if changes else "Nothing to do: the lab is as it was made.")


KUBECTL_EXAMPLES: Final = "kgpu lab kubectl get pods -A\nkgpu lab kubectl --name second logs my-pod -f"
_PASS_ON: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("kubectl", cls=ExampleCommand, context_settings=_PASS_ON, examples=KUBECTL_EXAMPLES)
@which_lab
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(*, name: str, folder: Path | None, arguments: tuple[str, ...]) -> None:
    """Run kubectl against the lab.

    --name and --dir come first; everything after them is passed on.
    """
    from kgpu.cli._lab import require_running

    lab = open_lab(name, folder)
    require_running(lab, folder)
    about = lab.about
    if not about.kubectl:
        raise LabError("there is no kubectl", "kubectl on PATH, or built by kgpu", '"kgpu lab build --embedded"')
    sys.stdout.flush()
    try:
        os.execvp(about.kubectl, [about.kubectl, "--kubeconfig", str(about.kubeconfig), *arguments])  # noqa: S606 - becomes kubectl
    except OSError as error:
        raise LabError(
            f"{about.kubectl}: {error.strerror}", "kubectl", "bring the lab up again; it builds one"
        ) from error
