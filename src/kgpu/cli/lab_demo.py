"""``kgpu lab demo``: the demo of ``kgpu.lab.demo`` on the screen: in colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.printable import counted
from kgpu.base.signals import interrupts
from kgpu.cli._common import ExampleCommand
from kgpu.cli._lab import line

if TYPE_CHECKING:
    from rich.console import Console

    from kgpu.lab.embedded.lab import EmbeddedLab
    from kgpu.lab.progress import Progress
    from kgpu.lab.scenarios.model import Scenario
    from kgpu.lab.scenarios.run import ScenarioResult, StepResult

OUTPUT_LINES: Final = 8  # of a step's output that are shown
KEEP: Final = "DEMO_KEEP"
_POLL_S: Final = 0.5


class DemoScreen:
    """Tells the demo. On a terminal with rules and colours, otherwise without."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._fancy = console.is_terminal

    def say(self, text: str = "", style: str = "") -> None:
        """A line, as it is."""
        self._console.print(text, style=style if self._fancy else None, markup=False, highlight=False, soft_wrap=True)

    def title(self, text: str) -> None:
        """The beginning of a part."""
        self.say()
        if self._fancy:
            self._console.rule(text, align="left", style="green", characters="─")
        else:
            self.say(f"== {text}")

    def cluster(self, lab: EmbeddedLab, answered_s: float) -> None:
        self.title("A Kubernetes cluster on this machine: no root, no GPU, nothing installed")
        self.say(f"The API server answers after {answered_s:.1f} s; kubectl and every other client can use it:")
        self.say(f"  export KUBECONFIG={shlex.quote(str(lab.kubeconfig))}", "cyan")

    def nodes(self, lab: EmbeddedLab, ready_s: float) -> None:
        from kgpu.lab.demo import FLEET

        report = lab.report()
        width = max(len(node["name"]) for node in report["nodes"])
        self.say(f"{len(report['nodes'])} nodes joined in {ready_s:.1f} s, with kgpu's agent where there are GPUs:")
        what = {row.prefix or row.profile: row.what for row in FLEET}
        for node in report["nodes"]:
            offers = ", ".join(f"{count} {name}" for name, count in sorted(node["allocatable"].items()) if count != "0")
            self.say(
                f"  {node['name']:{width}}  {what.get(node['name'].rpartition('-')[0], '')}: {offers or 'no GPUs'}"
            )

    def story(self, story: Scenario) -> None:
        self.title(story.title)
        self.say(story.story.rstrip(), "italic")

    def step(self, step: StepResult) -> None:
        self.say()
        mark = "✓" if self._fancy else "ok   "
        self.say(f"{mark} {step.title}" if step.ok else f"WRONG {step.title}", "bold green" if step.ok else "bold red")
        commands = step.command.splitlines()
        self.say(f"    $ {commands[0]}", "cyan")
        for shown in commands[1:]:
            self.say(f"      {shown}", "dim cyan")
        lines = step.output.splitlines()
        for shown in lines[:OUTPUT_LINES]:
            self.say(f"    {shown}")
        if len(lines) > OUTPUT_LINES:
            self.say(f"    ... {len(lines) - OUTPUT_LINES} more lines", "dim")
        if step.why:
            self.say(f"    {step.why}", "red")
            for shown in step.evidence.splitlines():
                self.say(f"      {shown}")

    def finished(self, result: ScenarioResult) -> None:
        verdict = "as expected" if result.ok else "NOT as expected"
        self.say()
        steps = counted(len(result.steps), "step")
        self.say(f"{steps} in {result.seconds:.1f} s, {verdict}", "dim" if result.ok else "bold red")

    def end(self, lab: EmbeddedLab, seconds: float, folder: Path | None, *, stays: bool) -> None:
        """What was shown, and what to do next."""
        self.title(f"That took {seconds:.0f} s. What to try next")
        from kgpu.lab.demo import MAIN_NODE

        def our(verb: str) -> str:
            return line(verb, lab.name, folder)

        rows = (
            ("look around", f"export KUBECONFIG={shlex.quote(str(lab.kubeconfig))}; kubectl get nodes,pods -A"),
            ("break a GPU", our(f"hw inject --node {MAIN_NODE} xid 79 --gpu 3")),
            ("and watch it go", f"kubectl get node {MAIN_NODE} -w -o jsonpath='{{.status.allocatable}}{{\"\\n\"}}'"),
            ("repair it", our(f"hw clear --node {MAIN_NODE}")),
            ("add nodes", our("node add hgx-h200 --count 3")),
            ("another story", our("run mig-mixed") + "    (kgpu lab run --list)"),
            ("real Kubernetes", "kgpu lab up --real    (Linux, root)"),
            ("end it", our("down")),
        )
        for what, command in rows if stays else rows[-2:-1]:
            self.say(f"  {what:16} {command}", "cyan")
        if not stays:
            self.say("  a lab that stays " + line("up", "lab", None), "cyan")


EXAMPLES: Final = """
kgpu lab demo
DEMO_KEEP=0 kgpu lab demo
kgpu lab demo --name second --port 16443
"""


@click.command("demo", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--name", default="demo", show_default=True, metavar="NAME", help="The lab's name.")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="The lab's folder. Default: ~/.local/state/kgpu/lab/NAME.",
)  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65535), help="The API server's port. Default: a free one.")
@click.option("--keep/--no-keep", default=None, help=f"Stay up afterwards. Default: on a terminal, unless {KEEP}=0.")
def demo(*, name: str, folder: Path | None, port: int | None, keep: bool | None) -> None:
    """A GPU cluster in seconds on any machine: four kinds of node, and stories played on it. Needs no root, no GPU.

    On a terminal it stays up until Ctrl-C or `kgpu lab down --name demo`; elsewhere it ends by itself. Exit code 3 when
    a step is not as expected.
    """
    from rich.console import Console

    from kgpu.lab import demo as the_demo
    from kgpu.lab import progress

    screen = DemoScreen(Console())
    reporter = progress.for_terminal()
    stays = sys.stdout.isatty() and os.environ.get(KEEP, "") != "0" if keep is None else keep
    lab = the_demo.make(name, folder, reporter, port=port or 0)
    _prepare(reporter)
    the_demo.refuse_running(lab)
    with _taken_down(lab, folder) as check:
        begun = time.monotonic()
        the_demo.bring_up(lab, screen)
        check()
        results = the_demo.play_stories(lab, screen, say=lambda text: click.echo(text, err=True))
        check()
        screen.end(lab, time.monotonic() - begun, folder, stays=stays)
        if stays:
            _stay(lab, screen, check)
    if not all(result.ok for result in results):
        raise click.exceptions.Exit(3)


@contextmanager
def _taken_down(lab: EmbeddedLab, folder: Path | None) -> Iterator[Callable[[], None]]:
    """The lab goes in the end, also after Ctrl-C, SIGTERM and a terminal that is closed.

    What is yielded ends it where a signal's exception was lost.
    """
    with interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as check:
        try:
            yield check
        finally:
            try:
                lab.down()
            except KeyboardInterrupt:
                what = f"Interrupted again; what is left of it goes with: {line('down', lab.name, folder)}"
                click.echo(what, err=True)
                raise


def _prepare(reporter: Progress) -> None:
    """What has to be built once, before time is taken. Raises UserError."""
    from kgpu.hw.simulator.build import native_dir
    from kgpu.lab.real import build

    native_dir()
    build.ensure_kubectl(reporter)


def _stay(lab: EmbeddedLab, screen: DemoScreen, check: Callable[[], None]) -> None:
    """Wait until another command takes the lab down, or for Ctrl-C."""
    screen.say()
    screen.say("The cluster stays up until Ctrl-C here.", "bold")
    with suppress(KeyboardInterrupt):
        while lab.running:
            check()
            time.sleep(_POLL_S)
        screen.say("It was taken down.")
