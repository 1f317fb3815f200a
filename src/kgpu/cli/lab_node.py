"""``kgpu lab node``: simulated nodes that join a running lab, on either kind of API server.

Only parses arguments and prints; the work is in ``kgpu.lab.nodes.manage``, imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, LabError
from kgpu.base.printable import counted
from kgpu.cli import _complete_lab
from kgpu.cli._common import ExampleGroup, output_option, print_json
from kgpu.cli._lab import machine_root, which_lab

F = TypeVar("F", bound=Callable[..., Any])

WAIT_S: Final = 60.0
WAIT_PER_NODE_S: Final = 0.5
EXAMPLES = """
kgpu lab node add hgx-h100
kgpu lab node add l4 --count 3 --label pool=inference --taint nvidia.com/gpu:NoSchedule
kgpu lab node add dgx-a100-80g --mig '0:1g.10gb*7'
kgpu lab node add hgx-h100 --light --count 1000 --wait
kgpu lab node list
kgpu lab node reboot l4-1
kgpu lab node stop l4-1
kgpu lab node start l4-1
kgpu lab node remove l4-2
"""


@click.group("node", cls=ExampleGroup, examples=EXAMPLES)
def node_group() -> None:
    """Simulated nodes: add them to a running lab, list them, reboot them, switch them off, take them away."""


def _lab(name: str, folder: Path | None) -> Path:
    from kgpu.lab.common import labs_root

    return (folder or labs_root() / name).absolute()


def _pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals:
            raise ConfigError(f'{option} "{value:.80}"', "KEY=VALUE", f"correct {option}")
        found[key] = text
    return found


@node_group.command(
    "add", examples="kgpu lab node add hgx-h100\nkgpu lab node add l4 --count 3 --taint gpu=yes:NoSchedule"
)
@which_lab
@click.argument("profile", shell_complete=_complete_lab.profiles)
@click.option("--count", type=click.IntRange(1, 5000), default=1, show_default=True, help="How many nodes.")
@click.option("--prefix", default="", metavar="NAME", help="Names are NAME-1, NAME-2, ... Default: the profile's.")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="GPUs of each. Default: the profile's.")
@click.option(
    "--mig", multiple=True, metavar="GPU:PROFILE*N", help="MIG slices: 0:1g.10gb*7, all:3g.40gb*2. Repeatable."
)
@click.option("--light", is_flag=True, help="For thousands: no process per node, pods are stand-ins.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the nodes. Repeatable.")
@click.option("--taint", "taints", multiple=True, metavar="KEY[=VALUE]:EFFECT", help="A taint. Repeatable.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Device plugin config of these nodes. Default: the cluster's ConfigMap.",
)
@click.option("--cpu", default="", metavar="QUANTITY", help="CPUs of each. Default: the machine's.")
@click.option("--memory", default="", metavar="QUANTITY", help="Memory of each. Default: the machine's.")
@click.option("--time-scale", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Shortens restart back-off: 0.1 is ten times faster.")  # fmt: skip
@click.option("--no-agent", is_flag=True, help="Start no kgpu agent on them.")
@click.option("--driver", type=click.Choice(["host", "container"]), default="host", show_default=True,
              help="Where their driver comes from: the host, or a container that the operator runs.")  # fmt: skip
@click.option("--wait", "waits", is_flag=True, help="Until they are Ready and offer their GPUs.")
@output_option()
def add(
    *, name: str, folder: Path | None, profile: str, count: int, prefix: str, gpus: int | None,
    mig: tuple[str, ...], light: bool, labels: tuple[str, ...], taints: tuple[str, ...], config: Path | None,
    cpu: str, memory: str, time_scale: float, no_agent: bool, driver: str, waits: bool, output: str,
) -> None:  # fmt: skip
    """Add nodes of PROFILE to the lab.

    PROFILE is a simulated machine (`kgpu lab hw list`), a profile file, or `cpu` for one without GPUs.
    """
    from kgpu.lab.nodes import manage, spec

    lab = _lab(name, folder)
    kubeconfig, _ = manage.place(lab)
    text = ""
    if config is not None:
        try:
            text = config.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {config}: {error}", "a readable file", "check the path") from error
    names = manage.add_to_running(
        lab, profile, count, name_prefix=prefix, gpus=gpus, mig=mig, light=light,
        labels=_pairs(labels, "--label"), taints=[spec.parse_taint(taint) for taint in taints], config=text,
        cpu=cpu, memory=memory, time_scale=time_scale, agent=not no_agent, driver=driver,
    )  # fmt: skip
    if waits:
        _wait(lab, kubeconfig, names, gpus=not no_agent and profile != spec.CPU_PROFILE)
    if output == "json":
        print_json({"nodes": names})
    elif count == 1:
        click.echo(f"node {names[0]} joins the lab")
    else:
        click.echo(f"nodes {names[0]} to {names[-1]} join the lab")


REBOOT_EXAMPLES = """
kgpu lab node reboot l4-1
kgpu lab node reboot l4-1 l4-2 --wait
"""


@node_group.command("reboot", examples=REBOOT_EXAMPLES)
@which_lab
@click.argument("names", nargs=-1, required=True, metavar="NODE...", shell_complete=_complete_lab.nodes)
@click.option("--wait", "waits", is_flag=True, help="Until they are Ready again and offer their GPUs.")
@output_option()
def reboot(*, name: str, folder: Path | None, names: tuple[str, ...], waits: bool, output: str) -> None:
    """Reboot the machines of nodes, as if their power were cut.

    All that runs on them ends at once, what they have in memory is lost, and their GPUs start anew: a GPU that fell off
    the bus is back. Then the kubelet starts the pods again. The Node tells a new boot id.
    """
    from kgpu.lab.nodes import manage

    lab, wanted = _lab(name, folder), list(dict.fromkeys(names))
    manage.reboot(lab, wanted)
    if waits:
        _wait_for_boots(lab, wanted)
    if output == "json":
        print_json({"nodes": wanted})
    else:
        verb = "has rebooted" if waits else "reboots"
        click.echo("\n".join(f"node {node} {verb}" for node in wanted))


STOP_EXAMPLES = """
kgpu lab node stop l4-1
kgpu lab node stop l4-1 && kubectl get nodes --watch
"""


@node_group.command("stop", examples=STOP_EXAMPLES)
@which_lab
@click.argument("names", nargs=-1, required=True, metavar="NODE...", shell_complete=_complete_lab.nodes)
@output_option()
def stop(*, name: str, folder: Path | None, names: tuple[str, ...], output: str) -> None:
    """Switch the machines of nodes off, as if their power were cut, until `kgpu lab node start`.

    The Node stays, and its kubelet says nothing any more: after 50 s Kubernetes calls it NotReady, and 5 min after that
    it has its pods made elsewhere, unless they tolerate that for another time.
    """
    from kgpu.lab import progress
    from kgpu.lab.nodes import manage

    lab, wanted = _lab(name, folder), list(dict.fromkeys(names))
    manage.stop(lab, wanted)
    with progress.for_terminal().step(f"wait for {counted(len(wanted), 'node')}"):
        manage.wait_until_off(lab, wanted, WAIT_S + WAIT_PER_NODE_S * len(wanted))
    if output == "json":
        print_json({"nodes": wanted})
    else:
        click.echo("\n".join(f"node {node} is off" for node in wanted))


@node_group.command("start", examples="kgpu lab node start l4-1\nkgpu lab node start l4-1 l4-2 --wait")
@which_lab
@click.argument("names", nargs=-1, required=True, metavar="NODE...", shell_complete=_complete_lab.nodes)
@click.option("--wait", "waits", is_flag=True, help="Until they are Ready again and offer their GPUs.")
@output_option()
def start(*, name: str, folder: Path | None, names: tuple[str, ...], waits: bool, output: str) -> None:
    """Switch the machines of nodes on that were stopped. One that runs is left alone."""
    from kgpu.lab.nodes import manage

    lab, wanted = _lab(name, folder), list(dict.fromkeys(names))
    started = manage.start(lab, wanted)
    if waits:
        _wait_for_boots(lab, wanted)
    if output == "json":
        print_json({"nodes": started})
        return
    for node in wanted:
        click.echo(f"node {node} " + (("is up" if waits else "starts") if node in started else "was not off"))


def _wait_for_boots(lab: Path, names: list[str]) -> None:
    from kgpu.lab import progress
    from kgpu.lab.embedded import ready

    with progress.for_terminal().step(f"wait for {counted(len(names), 'node')}"):
        ready.wait_for_boots(lab, names, WAIT_S + WAIT_PER_NODE_S * len(names))


def _wait(lab: Path, kubeconfig: Path, names: list[str], *, gpus: bool) -> None:
    from kgpu.lab import progress
    from kgpu.lab.embedded import ready
    from kgpu.lab.nodes import manage

    with progress.for_terminal().step(f"wait for {counted(len(names), 'node')}"):
        seconds = WAIT_S + WAIT_PER_NODE_S * len(names)
        ready.wait_for_nodes(kubeconfig, dict.fromkeys(names, gpus), seconds, manage.nodes_dir(lab))


@node_group.command("remove", examples="kgpu lab node remove l4-2\nkgpu lab node remove --all")
@which_lab
@click.argument("names", nargs=-1, shell_complete=_complete_lab.nodes)
@click.option("--all", "every", is_flag=True, help="Every simulated node of the lab.")
def remove(*, name: str, folder: Path | None, names: tuple[str, ...], every: bool) -> None:
    """Take nodes away: their pods, their processes, their Node objects."""
    from kgpu.lab.nodes import manage

    lab = _lab(name, folder)
    if every == bool(names):
        raise LabError("neither or both of NAMES and --all", "one of them", "name the nodes, or give --all")
    wanted = [*manage.listing(lab), *manage.broken(lab)] if every else list(names)
    manage.remove(lab, wanted)
    click.echo(f"{counted(len(wanted), 'simulated node')} removed")


@node_group.command("list", examples="kgpu lab node list\nkgpu lab node list -o json")
@which_lab
@output_option()
def list_(*, name: str, folder: Path | None, output: str) -> None:
    """List the simulated nodes of a lab."""
    from kgpu.lab.nodes import manage

    lab = _lab(name, folder)
    if not lab.exists():
        raise LabError(f"there is no lab in {lab}", "a lab", "`kgpu lab up`, or give its --name or --dir")
    status = manage.status(lab)
    if output == "json":
        print_json(status)
        return
    rows = status["nodes"]
    for problem in status["problems"]:
        click.echo(f"can't be read: {problem}", err=True)
    if not rows:
        click.echo("There are no simulated nodes.")
        return
    click.echo(f"{'NODE':24}{'PROFILE':18}{'FORM':8}HARDWARE")
    for row in rows:
        form = "light" if row.get("light") else "full"
        has = not row.get("light") and row["profile"] != "cpu"
        where = str(manage.nodes_dir(lab) / row["name"] / "hw") if has else "-"
        where += "".join(f"  ({state})" for state in ("rebooting", "off") if row["name"] in status[state])
        click.echo(f"{row['name']:24}{Path(row['profile']).stem:18}{form:8}{where}")
    click.echo(f"host: {'pid ' + str(status['host']) if status['host'] else 'not running'}; log {status['log']}")


@node_group.command("hw-root", examples="kgpu lab hw inject --node l4-1 xid 79 --gpu 0")
@which_lab
@click.argument("node", shell_complete=_complete_lab.nodes)
def hw_root(*, name: str, folder: Path | None, node: str) -> None:
    """Print a node's simulated driver root.

    `kgpu lab hw inject`, `clear`, `set` and the others find it by themselves with --node.
    """
    click.echo(str(machine_root(name, folder, node)))
