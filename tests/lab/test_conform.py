"""Comparing two runs of a scenario: what counts as the same, and what does not."""

from __future__ import annotations

import pytest

from kgpu.lab.scenarios.conform import compare, normal
from kgpu.lab.scenarios.run import ScenarioResult, StepResult


def run(backend: str, *outputs: str, why: str = "") -> ScenarioResult:
    steps = tuple(
        StepResult(title=f"step {n}", command="kubectl get x", output=text, seconds=0.1, why=why if n == 0 else "")
        for n, text in enumerate(outputs)
    )
    return ScenarioResult(scenario="s", backend=backend, seconds=1.0, steps=steps)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "GPU 0: H100 (UUID: GPU-8b1de5a3-0f0a-4d1f-9a6f-0a1b2c3d4e5f)",
            "GPU 0: H100 (UUID: GPU-00000000-0f0a-4d1f-9a6f-0a1b2c3d4e5f)",
        ),
        ("web-7d4b9c8f6-x2v5z   1/1   Running   0   12s", "web-5f6b8d7c9-kq4zz   1/1   Running   0     3m5s"),
        ("pod/job-x2v5z", "pod/job-bbbbb"),
        ("at 2026-11-21T10:00:00Z from 10.244.1.7", "at 2026-11-21T10:00:01.5Z from 10.231.0.2"),
        ("b\na", "a\nb"),
        ("3s (x2 over 5s)   Warning   FailedScheduling", "7s                Warning   FailedScheduling"),
    ],
)
def test_what_any_two_clusters_differ_in_is_the_same(one: str, other: str) -> None:
    assert compare(run("embedded", one), run("real", other)) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Insufficient nvidia.com/gpu", "Insufficient nvidia.com/gpu."),
        ("gpu-node-1   Ready", "gpu-node-2   Ready"),
        ("8 7", "8 8"),
        ("a", "a\na"),
        ("mig-1g.10gb", "mig-2g.20gb"),
        ("Running", "Succeeded"),
    ],
)
def test_anything_else_is_a_difference(one: str, other: str) -> None:
    (found,) = compare(run("embedded", one), run("real", other))
    assert found.step == "step 0"
    assert any(line.startswith("-") for line in found.lines) or any(line.startswith("+") for line in found.lines)


def test_a_story_that_ended_early_is_a_difference() -> None:
    found = compare(run("embedded", "a", why="it was wrong"), run("real", "a", "b"))
    assert [one.step for one in found] == ["step 0", "step 1"]
    assert found[0].lines == ("embedded: it was wrong",)
    assert found[1].lines == ("only real came this far",)


def test_steps_that_may_differ_are_compared_by_their_verdict_alone() -> None:
    def one(backend: str, output: str, why: str = "") -> ScenarioResult:
        step = StepResult(title="t", command="c", output=output, seconds=0.1, why=why, varies="other machines")
        return ScenarioResult(scenario="s", backend=backend, seconds=1.0, steps=(step,))

    assert compare(one("embedded", "a"), one("real", "b")) == ()
    (found,) = compare(one("embedded", "a"), one("real", "b", "it was wrong"))
    assert found.lines == ("real: it was wrong",)


def test_how_often_a_controller_has_tried_is_the_same_where_the_step_says_so() -> None:
    def told(backend: str, *lines: str, repeats: str = "") -> ScenarioResult:
        step = StepResult(title="t", command="c", output="\n".join(lines), seconds=0.1, repeats=repeats)
        return ScenarioResult(scenario="s", backend=backend, seconds=1.0, steps=(step,))

    refused = [
        f'ReplicaSet Error creating: pods "trainers-7d4b9c8f6-{name}" is forbidden' for name in ("x2v5z", "kq4zz")
    ]
    combined = f"ReplicaSet (combined from similar events): {refused[0].removeprefix('ReplicaSet ')}"
    why = "one for each time"
    assert compare(told("embedded", refused[0], repeats=why), told("real", *refused, combined)) == ()
    assert compare(told("embedded", *refused, repeats=why), told("real", refused[1])) == ()
    assert compare(told("embedded", refused[0]), told("real", *refused)), "only where the step says so"
    assert compare(told("embedded", refused[0], repeats=why), told("real", *refused, "and more"))
    assert compare(told("embedded", refused[0], repeats=why), told("real"))


def test_how_a_rollout_was_waited_for_is_the_same() -> None:
    slow = 'Waiting for deployment "web" rollout to finish: 1 of 2 updated replicas are available...\ndone'
    assert compare(run("embedded", "done"), run("real", slow)) == ()
    unseen = f"Waiting for deployment spec update to be observed...\n{slow}"
    assert compare(run("embedded", unseen), run("real", slow)) == ()


def test_names_that_only_look_random_stay() -> None:
    assert normal("gpu-quota mig-1g.10gb first-gpu-pod") == "gpu-quota mig-1g.10gb first-gpu-pod"
