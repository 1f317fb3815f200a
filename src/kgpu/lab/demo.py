"""The first thing a newcomer runs: an embedded cluster with four kinds of node, and the stories that show most.

No root, no GPU, no cluster. What it shows is what was measured: a step that is not as expected ends it with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kgpu.base.errors import LabError
from kgpu.lab.embedded import ready
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.progress import Progress
from kgpu.lab.scenarios import model
from kgpu.lab.scenarios.model import Scenario
from kgpu.lab.scenarios.run import ScenarioResult, StepResult, play

NAME: Final = "demo"
MAIN_NODE: Final = "dgx-h100-1"
STORIES: Final = ("first-gpu-pod", "insufficient-gpu", "time-slicing-lab", "unhealthy-gpu")
_NODES_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A node of the demo; ``what`` says what it is for a reader."""

    profile: str
    what: str
    prefix: str = ""
    gpus: int | None = None
    mig: tuple[str, ...] = ()


FLEET: Final = (
    DemoNode(profile="dgx-h100", what="a DGX H100, eight GPUs"),
    DemoNode(profile="l4", what="an inference server with L4s"),
    DemoNode(profile="dgx-a100-80g", prefix="a100-mig", gpus=1, mig=("0:1g.10gb*7",), what="an A100 cut into 7 slices"),
    DemoNode(profile="cpu", what="a node without GPUs"),
)


class DemoTeller(Protocol):
    """Reports the demo's progress to a person."""

    def cluster(self, lab: EmbeddedLab, answered_s: float) -> None:
        """The API server answers; nodes come next."""
        ...

    def nodes(self, lab: EmbeddedLab, ready_s: float) -> None:
        """Every node is Ready and offers its GPUs."""
        ...

    def story(self, story: Scenario) -> None:
        """A story begins."""
        ...

    def step(self, step: StepResult) -> None:
        """A step of it is done."""
        ...

    def finished(self, result: ScenarioResult) -> None:
        """The story has ended."""
        ...


def refuse_running(lab: EmbeddedLab) -> None:
    """Raises LabError when there is a lab of that name, up or not; it is left alone."""
    if lab.exists:
        how = "is already up" if lab.running else "is there, though it does not run"
        raise LabError(
            f'the lab "{lab.name}" {how}, from another demo perhaps',
            "none of that name",
            f'"kgpu lab down --name {lab.name}" first, or choose another --name',
        )


def bring_up(lab: EmbeddedLab, teller: DemoTeller) -> None:
    """The cluster and its four nodes. Raises LabError."""
    begun = time.monotonic()
    lab.up()
    teller.cluster(lab, time.monotonic() - begun)
    begun = time.monotonic()
    with lab.progress.step(f"{len(FLEET)} nodes join, with kgpu's agent on each that has GPUs"):
        wanted: dict[str, bool] = {}
        for machine in FLEET:
            names = manage.add(
                lab.folder, machine.profile, name_prefix=machine.prefix, gpus=machine.gpus, mig=machine.mig
            )
            wanted |= dict.fromkeys(names, machine.profile != "cpu")
        manage.start_host(lab.folder, lab.kubeconfig)
        ready.wait_for_nodes(lab.kubeconfig, wanted, _NODES_S, lab.nodes)
    teller.nodes(lab, time.monotonic() - begun)


def stories() -> list[Scenario]:
    """The demo's scenarios, in the order in which they are played."""
    return [model.load(str(Path(__file__).parent / "demo.yaml")), *(model.load(name) for name in STORIES)]


def play_stories(lab: EmbeddedLab, teller: DemoTeller, *, say: Callable[[str], None]) -> list[ScenarioResult]:
    """Play the stories until one is not as expected; their results."""
    results: list[ScenarioResult] = []
    for story in stories():
        teller.story(story)
        result = play(story, lab.backend(node=MAIN_NODE), listener=teller.step, say=say)
        teller.finished(result)
        results.append(result)
        if not result.ok:
            break
    return results


def make(name: str, folder: Path | None, progress: Progress, *, port: int = 0) -> EmbeddedLab:
    """The demo's lab, not yet up."""
    return EmbeddedLab(name, folder, progress, port=port)
