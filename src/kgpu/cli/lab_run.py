"""``kgpu lab run`` and ``kgpu lab conform``: play scenarios on a lab, and compare what two labs say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import LabError
from kgpu.base.printable import counted
from kgpu.cli import _complete_lab
from kgpu.cli._common import ExampleCommand, output_option, print_json
from kgpu.cli._lab import line, open_lab, which_lab

if TYPE_CHECKING:
    from kgpu.lab.port import Lab
    from kgpu.lab.scenarios.conform import Difference
    from kgpu.lab.scenarios.model import Scenario
    from kgpu.lab.scenarios.run import ScenarioResult, StepResult

STORY_GPUS: Final = 8
OUTPUT_LINES: Final = 24  # of a step's output that are shown
_BACKENDS: Final = click.Choice(["embedded", "real"])


@click.command(
    "run",
    cls=ExampleCommand,
    examples="kgpu lab run first-gpu-pod\nkgpu lab run mig-mixed --backend real\nkgpu lab run --list",
)
@which_lab
@click.argument("scenario", required=False, shell_complete=_complete_lab.scenarios)
@click.option("--backend", type=_BACKENDS, help="Which kind of lab. Default: the one that is up, else embedded.")
@click.option("--list", "listing", is_flag=True, help="List the scenarios.")
@click.option("--keep", is_flag=True, help="Leave the scenario's objects for a look.")
@output_option()
def run(
    *, name: str, folder: Path | None, scenario: str | None, backend: str | None, listing: bool, keep: bool, output: str
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
    lab = open_lab(name, folder, kind=backend or "")
    ensure_up(lab, folder)
    _require_node(lab, story, folder)
    _warn_of_leftovers(lab, folder)
    text = output == "text"
    if text:
        click.echo(f"{story.title}\n\n{story.story.rstrip()}\n")
    result = runner.play(
        story, lab.backend(vendor=story.vendor), listener=print_step if text else None, say=_say, keep=keep
    )
    if text:
        verdict = "as expected" if result.ok else "NOT as expected"
        steps = f"{counted(len(result.steps), 'step')} in {result.seconds:.1f} s"
        click.echo(f"{story.name}: {verdict}, {steps} on the {lab.about.kind} lab")
    else:
        print_json(result.to_json())
    if not result.ok:
        raise click.exceptions.Exit(3)


def ensure_up(lab: Lab, folder: Path | None) -> None:
    """Bring the lab up unless it runs; on Ctrl-C say what is left."""
    from kgpu.cli.lab import told_when_interrupted

    if lab.running and lab.about.complete:
        return
    if not lab.about.kubectl:
        from kgpu.lab.real import build

        build.ensure_kubectl(lab.progress)
    with told_when_interrupted(lab, folder):
        lab.up()


def _require_node(lab: Lab, story: Scenario, folder: Path | None) -> None:
    """Raises LabError where no node is as the scenario needs it: of its vendor, for kgpu's own with eight GPUs."""
    from kgpu.formats.names import NVIDIA
    from kgpu.hw.simulator.others import vendor_of
    from kgpu.hw.vendor import vendors
    from kgpu.lab.nodes.manage import for_stories, gpu_count
    from kgpu.lab.scenarios import model

    least = STORY_GPUS if story.name in model.bundled() else 1 if story.vendor else 0
    fitting = for_stories(lab.hardware(), story.vendor) if least else []
    if max((gpu_count(one.root) for one in fitting), default=0) >= least:
        return
    whose = vendors()[story.vendor].title if story.vendor else "any vendor"
    have = [f"{one.node} has {gpu_count(one.root)} of {vendors()[vendor_of(one.root)].title}"
            for one in for_stories(lab.hardware())]  # fmt: skip
    profile = "hgx-h100" if story.vendor in ("", NVIDIA) else "PROFILE"
    raise LabError(
        f"the scenario {story.name} needs a node with {counted(least, 'accelerator')} of {whose}: "
        + (", ".join(have) or "there is no node with whole GPUs"),
        "such a node, not a light one",
        line(f"node add {profile} --wait", lab.about.name, folder)
        + ("; kgpu lab hw list names the profiles" if profile == "PROFILE" else ""),
    )


def _say(text: str) -> None:
    click.echo(text, err=True)


def _warn_of_leftovers(there: Lab, folder: Path | None) -> None:
    from kgpu.lab import reset

    found = reset.leftovers(there)
    if found:
        lines = "".join(f"  {one}\n" for one in found)
        _say(f"The lab is not as it was made:\n{lines}`{line('reset', there.about.name, folder)}` puts it right.\n")


def _list_scenarios(output: str) -> None:
    from kgpu.lab.scenarios import model

    stories = [model.load(known) for known in model.bundled()]
    if output == "json":
        print_json([{"name": story.name, "title": story.title, "story": story.story} for story in stories])
        return
    width = max(len(story.name) for story in stories)
    for story in stories:
        click.echo(f"{story.name:{width}}  {story.title}")


def print_step(step: StepResult) -> None:
    mark = click.style("ok", fg="green") if step.ok else click.style("WRONG", fg="red", bold=True)
    click.echo(f"{mark}  {step.title} ({step.seconds:.1f} s)")
    for number, words in enumerate(step.command.splitlines()):
        click.echo(click.style(f"    {' ' if number else '$'} {words}", dim=True))
    lines = step.output.splitlines()
    for shown in lines[:OUTPUT_LINES]:
        click.echo(f"    {shown}")
    if len(lines) > OUTPUT_LINES:
        click.echo(f"    ... {len(lines) - OUTPUT_LINES} more lines")
    if step.why:
        click.echo(click.style(f"    {step.why}", fg="red"))
        for text in step.evidence.splitlines():
            click.echo(f"      {text}")
    click.echo()


CONFORM_EXAMPLES: Final = """
kgpu lab conform
kgpu lab conform first-gpu-pod mig-mixed
kgpu lab conform ./my-story.yaml --keep-labs -o json
"""


@click.command("conform", cls=ExampleCommand, examples=CONFORM_EXAMPLES)
@click.argument("scenarios", nargs=-1, shell_complete=_complete_lab.scenarios)
@click.option("--embedded", default="conform-embedded", show_default=True, metavar="NAME", help="The embedded lab.")
@click.option("--real", default="conform-real", show_default=True, metavar="NAME", help="The real lab.")
@click.option("--keep-labs", is_flag=True, help="Leave labs up that were brought up for this.")
@output_option()
def conform(*, scenarios: tuple[str, ...], embedded: str, real: str, keep_labs: bool, output: str) -> None:
    """Play SCENARIOS (default: all) on an embedded and on a real lab, and print where the two differ.

    Exit code 3 when they do. Times, identities and random names may differ; nothing else may.
    """
    from kgpu.lab.port import EMBEDDED, REAL
    from kgpu.lab.scenarios import model

    stories = [model.load(name) for name in scenarios or model.bundled()]
    labs = [open_lab(embedded, None, kind=EMBEDDED), open_lab(real, None, kind=REAL)]
    ours = [lab for lab in labs if not lab.running]
    differences: list[Difference] = []
    try:
        for lab in labs:
            ensure_up(lab, None)
        for story in stories:
            of_story = _conform(story, labs, text=output == "text")
            differences += of_story
    finally:
        for lab in () if keep_labs else ours:
            lab.down()
    if output == "json":
        print_json(
            {
                "scenarios": [story.name for story in stories],
                "differences": [difference.to_json() for difference in differences],
            }
        )
    else:
        click.echo(f"{counted(len(stories), 'scenario')} on both labs: {_count(len(differences))}")
    if differences:
        raise click.exceptions.Exit(3)


def _count(number: int) -> str:
    return "no difference" if not number else "1 step differs" if number == 1 else f"{number} steps differ"


def _conform(story: Scenario, labs: list[Lab], *, text: bool) -> list[Difference]:
    from kgpu.lab.scenarios import conform as compare
    from kgpu.lab.scenarios import run as runner

    results: list[ScenarioResult] = [runner.play(story, lab.backend(vendor=story.vendor), say=_say) for lab in labs]
    differences = list(compare.compare(results[0], results[1]))
    if text:
        took = ", ".join(f"{result.backend} {result.seconds:.1f} s" for result in results)
        click.echo(f"{story.name}: {_count(len(differences))} in {counted(len(results[0].steps), 'step')} ({took})")
        for difference in differences:
            click.echo(f"  {difference.step}\n    $ {difference.command.splitlines()[0]}")
            for shown in difference.lines:
                click.echo(f"      {shown}")
    return differences
