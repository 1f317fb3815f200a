"""``kgpu lab``: clusters with simulated accelerators to try kgpu on, and scenarios to play on them.

Only parses arguments and prints; the work is in ``kgpu.lab``, imported when a command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import LabError
from kgpu.cli._common import ExampleCommand, output_option, print_json
from kgpu.cli.main import Entry, LazyGroup

if TYPE_CHECKING:
    from kgpu.lab.real.cluster import RealLab
    from kgpu.lab.scenarios.run import StepResult

F = TypeVar("F", bound=Callable[..., Any])

ENTRIES: Final = (
    Entry("up", "kgpu.cli.lab", "up", "Bring a cluster with simulated GPUs up."),
    Entry("run", "kgpu.cli.lab", "run", "Play a scenario on it."),
    Entry("status", "kgpu.cli.lab", "status", "Show its processes, memory, node and GPUs."),
    Entry("kubectl", "kgpu.cli.lab", "kubectl", "Run kubectl against it."),
    Entry("down", "kgpu.cli.lab", "down", "Take it down and leave nothing behind."),
    Entry("demo", "kgpu.cli.lab_demo", "demo", "A tour on one simulated node, without a cluster."),
    Entry("demo", "kgpu.cli.lab_demo", "demo", "A tour on one simulated node, without a cluster."),
    Entry("build", "kgpu.cli.lab_build", "build", "Build what the labs need ahead of time."),
    Entry("demo", "kgpu.cli.lab_demo", "demo", "A tour on one simulated node, without a cluster."),
    Entry("build", "kgpu.cli.lab_build", "build", "Build ahead of time what the labs are made of."),
    Entry("hw", "kgpu.cli.lab_hw", "hw_group", "Simulated GPUs: make a driver root, change it, break it."),
)
OUTPUT_LINES: Final = 24  # of a step's output that are shown
EXAMPLES = """
kgpu lab up --real
kgpu lab run first-gpu-pod --backend real
kgpu lab kubectl get nodes
kgpu lab down
"""


@click.group("lab", cls=LazyGroup, entries=ENTRIES, examples=EXAMPLES)
def lab() -> None:
    """Clusters with simulated accelerators, to try kgpu and to test it."""


def _which_lab(function: F) -> F:
    name = click.option("--name", default="lab", show_default=True, metavar="NAME", help="Which lab.")
    folder = click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The lab's folder. Default: ~/.local/state/kgpu/lab/NAME.",
    )
    return name(folder(function))


def _open(name: str, folder: Path | None) -> RealLab:
    """The lab of that name, with the settings it was made with."""
    from kgpu.lab import progress
    from kgpu.lab.real import cluster, model, state

    found = state.load(model.Paths(folder or cluster.labs_root() / name).state)
    spec = model.LabSpec(name=name)
    if found is not None:
        spec = model.LabSpec(name=found.name, profile=found.profile, gpus=found.gpus, agent=found.agent)
    return cluster.RealLab(spec, folder=folder, progress=progress.for_terminal())


@click.command(
    "up", cls=ExampleCommand, examples="kgpu lab up --real\nkgpu lab up --real --profile dgx-a100-80g --gpus 4"
)
@_which_lab
@click.option("--real", is_flag=True, help="Real Kubernetes, built from source on first use (Linux, root).")
@click.option("--profile", default="hgx-h100", show_default=True, help="The simulated machine; see `kgpu lab hw list`.")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="Number of GPUs. Default: the profile's.")
@click.option("--no-agent", is_flag=True, help="Start no kgpu agent on the node.")
@click.option("--install-tools", is_flag=True, help="Install missing programs of the machine with apt-get first.")
def up(
    *, name: str, folder: Path | None, real: bool, profile: str, gpus: int | None, no_agent: bool, install_tools: bool
) -> None:
    """Bring a cluster up; what is already there is kept."""
    from kgpu.lab import progress
    from kgpu.lab.real import cluster, hosttools, model

    if not real:
        raise LabError("this version of kgpu has the real lab only", "kgpu lab up --real", "add --real")
    reporter = progress.for_terminal()
    if install_tools:
        hosttools.require_platform()
        hosttools.ensure_host_tools(reporter)
    spec = model.LabSpec(name=name, profile=profile, gpus=gpus, agent=not no_agent)
    made = cluster.RealLab(spec, folder=folder, progress=reporter)
    made.up()
    suffix = "" if name == "lab" else f" --name {name}"
    click.echo(f"The lab is up: node {model.NODE_NAME}, API {made.network.api_url}")
    click.echo(f"  export KUBECONFIG={made.kubeconfig}")
    click.echo(f"  kgpu lab run first-gpu-pod{suffix}    kgpu lab status{suffix}    kgpu lab down{suffix}")


@click.command("down", cls=ExampleCommand, examples="kgpu lab down\nkgpu lab down --name second")
@_which_lab
def down(*, name: str, folder: Path | None) -> None:
    """Take the lab down: every process, mount, link, cgroup and file of it."""
    there = _open(name, folder)
    if there.down():
        click.echo("The lab is down; nothing of it is left.")
    else:
        click.echo(f'There is no lab "{name}"; nothing to do.')


@click.command("status", cls=ExampleCommand, examples="kgpu lab status\nkgpu lab status -o json")
@_which_lab
@output_option()
def status(*, name: str, folder: Path | None, output: str) -> None:
    """Show what runs, how much memory it takes, and the node's GPUs. Exit code 3 when the lab is not up."""
    from kgpu.lab.real import status as real_status

    report = real_status.report(_open(name, folder))
    if output == "json":
        print_json(report)
    else:
        _print_status(report)
    if not report["running"]:
        raise click.exceptions.Exit(3)


def _print_status(report: dict[str, Any]) -> None:
    if not report["running"]:
        click.echo(f'The lab "{report["name"]}" is not up. Start it with: kgpu lab up --real')
        return
    node = report["node"]
    click.echo(f'Lab "{report["name"]}": profile {report["profile"]}, API {report["api"]}')
    click.echo(f"Node {node['name']}: {'Ready' if node['ready'] else 'not Ready'} {node.get('problem', '')}".rstrip())
    for resource, capacity in sorted(node.get("capacity", {}).items()):
        click.echo(f"  {resource}: {node['allocatable'].get(resource, '0')} allocatable of {capacity}")
    click.echo(f"{'PROCESS':26}{'PID':>9}{'RESTARTS':>10}{'RSS MiB':>10}{'PSS MiB':>10}  VERSION")
    for process in report["processes"]:
        sizes = "".join(f"{process.get(key, 0) / 1024:10.1f}" for key in ("rss_kib", "pss_kib"))
        version = report["versions"].get(process["name"], "")
        click.echo(
            f"{process['name']:26}{process['pid'] or '-':>9}{process['restarts']:>10}{sizes}  {version}".rstrip()
        )
    total = sum(process.get("pss_kib", 0) for process in report["processes"]) / 1024
    click.echo(f"{'all':26}{'':>29}{total:10.1f}")


_PASS_ON: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("kubectl", cls=ExampleCommand, context_settings=_PASS_ON, examples="kgpu lab kubectl get pods -A")
@_which_lab
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(*, name: str, folder: Path | None, arguments: tuple[str, ...]) -> None:
    """Run kubectl against the lab; everything after `kubectl` is passed on."""
    there = _open(name, folder)
    there.require_running()
    program = there.kubectl_program
    sys.stdout.flush()
    try:
        os.execvp(program, [program, "--kubeconfig", str(there.kubeconfig), *arguments])  # noqa: S606 - becomes kubectl
    except OSError as error:
        raise LabError(f"{program}: {error.strerror}", "kubectl", "bring the lab up again; it builds one") from error


@click.command("run", cls=ExampleCommand, examples="kgpu lab run first-gpu-pod --backend real\nkgpu lab run --list")
@_which_lab
@click.argument("scenario", required=False)
@click.option("--backend", type=click.Choice(["real"]), default="real", show_default=True, help="Which kind of lab.")
@click.option("--list", "listing", is_flag=True, help="List the scenarios.")
@click.option("--keep", is_flag=True, help="Leave the scenario's objects for a look.")
@output_option()
def run(
    *, name: str, folder: Path | None, scenario: str | None, backend: str, listing: bool, keep: bool, output: str
) -> None:
    """Play SCENARIO (a name or a file) and check every step. Exit code 3 when one is not as expected.

    A lab that is not up is brought up first.
    """
    from kgpu.lab.scenarios import model
    from kgpu.lab.scenarios import run as runner

    if listing or scenario is None:
        _list_scenarios(output)
        return
    story = model.load(scenario)
    there = _open(name, folder)
    if not there.running:
        there.up()
    place = there.backend(backend)
    text = output == "text"
    if text:
        click.echo(f"{story.title}\n\n{story.story.rstrip()}\n")
    result = runner.play(story, place, listener=_print_step if text else None, keep=keep)
    if text:
        verdict = "as expected" if result.ok else "NOT as expected"
        click.echo(f"{story.name}: {verdict}, {len(result.steps)} steps in {result.seconds:.1f} s on the {backend} lab")
    else:
        print_json(result.to_json())
    if not result.ok:
        raise click.exceptions.Exit(3)


def _list_scenarios(output: str) -> None:
    from kgpu.lab.scenarios import model

    stories = [model.load(known) for known in model.bundled()]
    if output == "json":
        print_json([{"name": story.name, "title": story.title, "story": story.story} for story in stories])
        return
    for story in stories:
        click.echo(f"{story.name:20} {story.title}")


def _print_step(step: StepResult) -> None:
    mark = click.style("ok", fg="green") if step.ok else click.style("WRONG", fg="red", bold=True)
    click.echo(f"{mark}  {step.title} ({step.seconds:.1f} s)")
    for number, line in enumerate(step.command.splitlines()):
        click.echo(click.style(f"    {' ' if number else '$'} {line}", dim=True))
    lines = step.output.splitlines()
    for line in lines[:OUTPUT_LINES]:
        click.echo(f"    {line}")
    if len(lines) > OUTPUT_LINES:
        click.echo(f"    ... {len(lines) - OUTPUT_LINES} more lines")
    if step.why:
        click.echo(click.style(f"    {step.why}", fg="red"))
        for line in step.evidence.splitlines():
            click.echo(f"      {line}")
    click.echo()
