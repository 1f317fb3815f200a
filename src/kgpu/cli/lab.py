"""``kgpu lab``: clusters with simulated accelerators to try kgpu on, and scenarios to play on them.

Only parses arguments and prints; the work is in ``kgpu.lab``, imported when a command runs.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    Entry("reset", "kgpu.cli.lab", "reset", "Repair its GPUs and remove what scenarios left."),
    Entry("kubectl", "kgpu.cli.lab", "kubectl", "Run kubectl against it."),
    Entry("down", "kgpu.cli.lab", "down", "Take it down and leave nothing behind."),
    Entry("demo", "kgpu.cli.lab_demo", "demo", "A tour on one simulated node, without a cluster."),
    Entry("build", "kgpu.cli.lab_build", "build", "Build ahead of time what the labs are made of."),
    Entry("node", "kgpu.cli.lab_node", "node_group", "Simulated nodes: add, list, remove."),
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


def _line(verb: str, name: str, folder: Path | None) -> str:
    """The command line for ``verb`` about the same lab."""
    words = ["kgpu", "lab", *verb.split(), *([] if name == "lab" else ["--name", name])]
    return shlex.join([*words, *(["--dir", str(folder)] if folder else [])])


def _up_line(there: RealLab, folder: Path | None) -> str:
    """The command line that brings this lab up, with its settings."""
    spec = there.spec
    verb = "up --real" + ("" if spec.profile == "hgx-h100" else f" --profile {spec.profile}")
    verb += f" --gpus {spec.gpus}" if spec.gpus else ""
    return _line(verb + ("" if spec.agent else " --no-agent"), spec.name, folder)


@contextmanager
def _told_when_interrupted(there: RealLab, folder: Path | None) -> Iterator[None]:
    """After Ctrl-C, say what still runs and what to do about it."""
    try:
        yield
    except KeyboardInterrupt:
        if there.running:
            text = f'Interrupted. The lab "{there.spec.name}" is incomplete, and its node runs on.\n'
            text += f"  go on:     {_up_line(there, folder)}\n  remove it: {_line('down', there.spec.name, folder)}"
        else:
            text = "Interrupted. Nothing of the lab runs; programs that were built are kept.\n"
            text += f"  go on: {_up_line(there, folder)}"
        click.echo(text, err=True)
        raise


@click.command(
    "up", cls=ExampleCommand, examples="kgpu lab up --real\nkgpu lab up --real --profile dgx-a100-80g --gpus 4"
)
@_which_lab
@click.option("--real", is_flag=True, help="Real Kubernetes, built from source on first use (Linux, root).")
@click.option("--profile", default="hgx-h100", show_default=True, help="The simulated machine; see `kgpu lab hw list`.")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="Number of GPUs. Default: the profile's.")
@click.option("--no-agent", is_flag=True, help="Start no kgpu agent on the node.")
@click.option("--install-tools", is_flag=True, help="First install what is missing, with apt-get and pip.")
def up(
    *, name: str, folder: Path | None, real: bool, profile: str, gpus: int | None, no_agent: bool, install_tools: bool
) -> None:
    """Bring a cluster up; what is already there is kept."""
    from kgpu.lab import progress
    from kgpu.lab.real import bootstrap, build, cluster, hosttools, model

    if not real:
        raise LabError("this version of kgpu has the real lab only", "kgpu lab up --real", "add --real")
    reporter = progress.for_terminal()
    spec = model.LabSpec(name=name, profile=profile, gpus=gpus, agent=not no_agent)
    made = cluster.RealLab(spec, folder=folder, progress=reporter)
    if install_tools:
        hosttools.require_platform()
        bootstrap.check_hardware(spec)
        build.install_tools(reporter)
    with _told_when_interrupted(made, folder):
        made.up()
    click.echo(f"The lab is up: node {model.NODE_NAME}, API {made.network.api_url}")
    click.echo(f"  export KUBECONFIG={made.kubeconfig}")
    click.echo("  " + "    ".join(_line(verb, name, folder) for verb in ("run first-gpu-pod", "status", "down")))


@click.command("down", cls=ExampleCommand, examples="kgpu lab down\nkgpu lab down --name second")
@_which_lab
def down(*, name: str, folder: Path | None) -> None:
    """Take the lab down: every process, mount, link, cgroup and file of it."""
    there = _open(name, folder)
    if there.down():
        click.echo("The lab is down; nothing of it is left.")
    else:
        click.echo(f'There is no lab "{name}" in {there.paths.root}; nothing to do.{_whose()}')


def _whose() -> str:
    return "" if os.geteuid() == 0 else " A lab that root made is seen by root alone: try sudo."


@click.command("reset", cls=ExampleCommand, examples="kgpu lab reset\nkgpu lab reset --name second")
@_which_lab
def reset(*, name: str, folder: Path | None) -> None:
    """Put the lab back to how `up` made it.

    Ends simulated faults and MIG slices, removes the scenarios' namespaces and the node's configuration label, and
    restores the device plugin's ConfigMap.
    """
    from kgpu.lab.real import reset as real_reset

    there = _open(name, folder)
    there.require_running()
    found = real_reset.reset(there)
    for line in found:
        click.echo(f"  was: {line}")
    click.echo("The lab is as it was made." if found else "Nothing to do: the lab is as it was made.")


@click.command("status", cls=ExampleCommand, examples="kgpu lab status\nkgpu lab status -o json")
@_which_lab
@output_option()
def status(*, name: str, folder: Path | None, output: str) -> None:
    """Show what runs, how much memory it takes, and the node's GPUs. Exit code 3 when the lab is not up."""
    from kgpu.lab.real import status as real_status

    there = _open(name, folder)
    report = real_status.report(there)
    if output == "json":
        print_json(report)
    else:
        _print_status(report, _up_line(there, folder))
    if not report["running"]:
        raise click.exceptions.Exit(3)


def _print_status(report: dict[str, Any], up_line: str) -> None:
    if not report["running"]:
        click.echo(f'The lab "{report["name"]}" is not up. Start it with: {up_line}{_whose()}')
        return
    node = report["node"]
    click.echo(f'Lab "{report["name"]}": profile {report["profile"]}, API {report["api"]}')
    if not report["complete"]:
        click.echo(f"  INCOMPLETE: `up` has not come to its end; this goes on with it: {up_line}")
    click.echo(f"  logs {report['logs']}\n  simulated driver root {report['hw_root']}")
    click.echo(f"Node {node['name']}: {'Ready' if node['ready'] else 'not Ready'} {node.get('problem', '')}".rstrip())
    for resource, capacity in sorted(node.get("capacity", {}).items()):
        click.echo(f"  {resource}: {node['allocatable'].get(resource, '0')} allocatable of {capacity}")
    for row in report.get("unhealthy", []):
        device = "driver" if not row["device"] else row["device"] if row["gpu"] is None else f"GPU {row['gpu']}"
        click.echo(f"  unhealthy: {device}, {row['why']}" + (f" ({row['device']})" if row["gpu"] is not None else ""))
    if report.get("agent_problem"):
        click.echo(f"  {report['agent_problem']}")
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
    if not there.running or not there.state.complete:
        with _told_when_interrupted(there, folder):
            there.up()
    _warn_of_leftovers(there, folder)
    place = there.backend(backend)
    text = output == "text"
    if text:
        click.echo(f"{story.title}\n\n{story.story.rstrip()}\n")
    result = runner.play(story, place, listener=_print_step if text else None, say=_say, keep=keep)
    if text:
        verdict = "as expected" if result.ok else "NOT as expected"
        click.echo(f"{story.name}: {verdict}, {len(result.steps)} steps in {result.seconds:.1f} s on the {backend} lab")
    else:
        print_json(result.to_json())
    if not result.ok:
        raise click.exceptions.Exit(3)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _warn_of_leftovers(there: RealLab, folder: Path | None) -> None:
    from kgpu.lab.real import reset as real_reset

    found = real_reset.leftovers(there)
    if found:
        lines = "".join(f"  {line}\n" for line in found)
        _say(f"The lab is not as it was made:\n{lines}`{_line('reset', there.spec.name, folder)}` puts it right.\n")


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
