"""Scenarios played once per test run and lab, however many tests look at the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kgpu.lab import reset
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.port import Lab
from kgpu.lab.scenarios import model
from kgpu.lab.scenarios.run import ScenarioResult, play

KUBECTL = Path(__file__).parent / "kubectl"


def stories() -> list[str]:
    """Every scenario that comes with kgpu, then the files of what kubectl prints."""
    return [
        *sorted(model.bundled()),
        *(str(path.relative_to(KUBECTL.parents[2])) for path in sorted(KUBECTL.glob("*.yaml"))),
    ]


@dataclass
class Played:
    """Results by scenario and kind of lab."""

    results: dict[tuple[str, str], ScenarioResult] = field(default_factory=dict)

    def on(self, lab: Lab, story: str) -> ScenarioResult:
        """The result of the scenario on the lab, played now unless it was before."""
        key = (story, lab.about.kind)
        if key not in self.results:
            path = story if "/" not in story else str(KUBECTL.parents[2] / story)
            self.results[key] = play(model.load(path), lab.backend())
        return self.results[key]


def wrong(result: ScenarioResult) -> str:
    """What was not as expected, with the evidence; "" when all was."""
    texts = [
        f"{step.title}: {step.why}\n$ {step.command}\n{step.output}\n{step.evidence}"
        for step in result.steps
        if not step.ok
    ]
    return "\n\n".join(texts)


def check_on_embedded(lab: EmbeddedLab, played: Played, story: str) -> ScenarioResult:
    """The story's result: all as expected, and nothing of it left in the lab."""
    before = (story, lab.about.kind) in played.results
    result = played.on(lab, story)
    assert not wrong(result), lab.log_tail("server", 20)
    assert result.steps
    assert before or reset.leftovers(lab) == []
    return result
