"""Scenario files: what is read, what is refused and how it is said, what a step runs, how a story is played."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import LabError
from kgpu.lab.nodes import container_processes
from kgpu.lab.scenarios import model
from kgpu.lab.scenarios.model import Expect, ScenarioStep, Wait, parse, verdict
from kgpu.lab.scenarios.run import Backend, CommandOutput, StepResult, play, run_command, translate
from tests import polling

STORY = """
name: tiny
title: A tiny story
steps:
  - {title: look, run: kubectl get nodes, expect: {contains: [Ready]}}
  - {title: change, apply: "kind: Pod"}
  - {title: wait, wait: {object: pod/x, jsonpath: "{.status.phase}", equals: Running}}
cleanup:
  - {title: tidy, run: kubectl delete pod x}
"""


class MemoryBackend:
    """The fake: answers from a table of prefixes, remembers what was run."""

    name = "memory"

    def __init__(self, answers: Mapping[str, list[CommandOutput]] | None = None) -> None:
        self.answers = {key: list(outcomes) for key, outcomes in (answers or {}).items()}
        self.ran: list[str] = []

    def values(self) -> Mapping[str, str]:
        return {"NODE": "node-1", "HW_ROOT": "/hw", "KUBECONFIG": "/kubeconfig"}

    def command(self, words: Sequence[str], stdin: str | None = None) -> CommandOutput:
        line = " ".join(words)
        self.ran.append(line if stdin is None else f"{line} < {stdin.strip()}")
        for prefix, outcomes in self.answers.items():
            if line.startswith(prefix):
                return outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        return CommandOutput(0, "")

    @contextlib.contextmanager
    def inside(self, namespace: str) -> Iterator[Backend]:
        self.ran.append(f"namespace {namespace}")
        yield self


READY = {"kubectl get nodes": [CommandOutput(0, "n1 Ready")], "kubectl get pod/x": [CommandOutput(0, "Running")]}


def test_bundled_scenarios_are_valid_and_named_after_their_file() -> None:
    bundled = model.bundled()
    assert {"first-gpu-pod", "time-slicing-lab", "mig-mixed", "unhealthy-gpu"} <= set(bundled)
    for name in bundled:
        story = model.load(name)
        assert story.name == name
        assert story.title
        assert story.steps
        assert all(step.title for step in story.steps)


def test_a_story_is_played_in_its_own_namespace_and_cleaned_up() -> None:
    backend = MemoryBackend(READY)
    told: list[str] = []
    result = play(parse(STORY, "s"), backend, listener=lambda step: told.append(step.title))
    assert result.ok
    assert told == ["look", "change", "wait"]
    start = backend.ran.index("namespace demo-tiny")
    assert backend.ran[start + 1 :] == [
        "kubectl get nodes",
        "kubectl apply -f - < kind: Pod",
        "kubectl get pod/x -o jsonpath={.status.phase}",
        "kubectl delete pod x",
        "kubectl delete namespace demo-tiny --timeout=60s",
    ]


def test_the_first_wrong_step_ends_the_story_but_not_the_cleanup() -> None:
    backend = MemoryBackend({"kubectl get nodes": [CommandOutput(0, "n1 NotR")]})
    result = play(parse(STORY, "s"), backend)
    assert not result.ok
    assert [step.title for step in result.steps] == ["look"]
    assert '"Ready" is not in the output' in result.steps[0].why
    assert "kubectl delete pod x" in backend.ran
    assert not any(line.startswith("kubectl apply") for line in backend.ran)
    assert result.to_json()["ok"] is False


def test_keep_leaves_the_objects() -> None:
    backend = MemoryBackend(READY)
    play(parse(STORY, "s"), backend, keep=True)
    assert "kubectl delete pod x" not in backend.ran
    assert "kubectl delete namespace demo-tiny --timeout=60s" not in backend.ran


def test_within_repeats_until_it_is_so() -> None:
    text = STORY.replace("expect: {contains: [Ready]}", "within: 20, expect: {contains: [Ready]}")
    backend = MemoryBackend(
        {"kubectl get nodes": [CommandOutput(1, "refused"), CommandOutput(0, "n1 NotR"), CommandOutput(0, "n1 Ready")]}
        | {"kubectl get pod/x": [CommandOutput(0, "Running")]}
    )
    assert play(parse(text, "s"), backend).ok
    assert backend.ran.count("kubectl get nodes") == 3


def test_a_namespace_that_cannot_be_made_is_told() -> None:
    backend = MemoryBackend({"kubectl create namespace": [CommandOutput(1, "connection refused")]})
    with pytest.raises(LabError, match="connection refused"):
        play(parse(STORY, "s"), backend)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "Expected `object`"),
        ("name: [", "is not YAML"),
        (STORY.replace("title: A tiny story", "titles: A tiny story"), 'did you mean "title"?'),
        (STORY.replace("run: kubectl get nodes", "rum: kubectl get nodes"), 'did you mean "run"?'),
        (STORY.replace("name: tiny", "name: Tiny One"), "can't be a name"),
        (STORY.replace("run: kubectl get nodes", "run: rm -rf x"), 'runs "rm -rf x"'),
        (STORY.replace("run: kubectl get nodes", "run: ''"), "runs"),
        (STORY.replace('apply: "kind: Pod"', "expect: {}"), "has no action"),
        (STORY.replace('apply: "kind: Pod"', 'apply: "kind: Pod", sh: "true"'), "has apply and sh"),
        (STORY.replace("contains: [Ready]", "matches: ['(']"), "is no regular expression"),
        (STORY.replace("kubectl get nodes", "kubectl get nodes | grep x"), "is a shell's line"),
        (STORY.replace("kubectl get nodes", '"kubectl get node ${NOED}"'), 'did you mean "NODE"'),
        ("name: tiny\ntitle: t\nsteps: []", "it has no steps"),
        (STORY.replace("contains: [Ready]", "contains: Ready"), "Expected `array`"),
        (STORY.replace("expect: {contains", "within: soon, expect: {contains"), "Expected `float`"),
    ],
)
def test_bad_files_are_refused_with_the_reason(text: str, what: str) -> None:
    with pytest.raises(LabError) as caught:
        parse(text, "story.yaml")
    assert what in caught.value.what
    assert "story.yaml" in caught.value.what


@given(st.text(max_size=200) | st.from_regex(r"name: .*\nsteps: .*", fullmatch=True))
def test_any_text_is_a_scenario_or_a_lab_error(text: str) -> None:
    with contextlib.suppress(LabError):
        parse(text, "fuzz")


def test_unknown_scenario_names_the_near_one() -> None:
    with pytest.raises(LabError, match='did you mean "first-gpu-pod"') as caught:
        model.load("first-gpu-pot")
    assert "first-gpu-pod" in caught.value.expected


@pytest.mark.parametrize(
    ("expect", "output", "code", "why"),
    [
        (Expect(), "anything", 0, ""),
        (Expect(), "", 1, "ended with 1"),
        (Expect(fails=True), "", 1, ""),
        (Expect(fails=True), "", 0, "expected an error"),
        (Expect(equals="8"), " 8\n", 0, ""),
        (Expect(equals="8"), "80", 0, "expected exactly"),
        (Expect(contains=("a", "b")), "a c", 0, '"b" is not'),
        (Expect(lacks=("a",)), "a c", 0, '"a" is in'),
        (Expect(matches=(r"^x\d$",)), "y\nx1\n", 0, ""),
        (Expect(matches=(r"^x\d$",)), "xx1", 0, "nothing matches"),
        (Expect(count={r"^GPU \d": 2}), "GPU 0\nGPU 1\n", 0, ""),
        (Expect(count={r"^GPU \d": 2}), "GPU 0\nGPU 1\nGPU 2", 0, "matches 3 times"),
    ],
)
def test_verdict(expect: Expect, output: str, code: int, why: str) -> None:
    found = verdict(expect, output, code)
    assert why in found
    assert bool(found) == bool(why)


def test_values_are_filled_in_and_foreign_dollars_stay() -> None:
    values = MemoryBackend().values()
    words, stdin, shown, _ = translate(ScenarioStep(apply="a: ${NODE} $(date) ${OTHER}\n"), values)
    assert (words, stdin) == (["kubectl", "apply", "-f", "-"], "a: node-1 $(date) ${OTHER}\n")
    assert shown.startswith("kubectl apply -f - <<EOF\na: node-1")
    assert translate(ScenarioStep(sh="kill $$; echo $NODE $${NODE}"), values)[0][-1] == "kill $$; echo $NODE $node-1"
    words, _, _, _ = translate(ScenarioStep(run="kubectl get node ${NODE} -o 'jsonpath={.a b}'"), values)
    assert words == ["kubectl", "get", "node", "node-1", "-o", "jsonpath={.a b}"]
    _, _, _, expect = translate(ScenarioStep(wait=Wait(object="pod/a", jsonpath="{.s}", equals="${NODE}")), values)
    assert expect == Expect(equals="node-1")


class InterruptedBackend(MemoryBackend):
    """Gets the signal, as from Ctrl-C, during each command that begins with ``at``."""

    def __init__(self, at: str, number: int = signal.SIGINT) -> None:
        super().__init__(READY)
        self.at, self.number = at, number

    def command(self, words: Sequence[str], stdin: str | None = None) -> CommandOutput:
        outcome = super().command(words, stdin)
        if " ".join(words).startswith(self.at):
            signal.raise_signal(self.number)
        return outcome


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("at", "cleaned"), [("kubectl apply", True), ("kubectl get nodes", True), ("kubectl create namespace", False)]
)
def test_an_interrupted_story_cleans_up(at: str, cleaned: bool, number: int) -> None:
    backend = InterruptedBackend(at, number)
    said: list[str] = []
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        play(parse(STORY, "s"), backend, say=said.append)
    assert said == ["interrupted; cleaning up"]
    assert ("kubectl delete pod x" in backend.ran) == cleaned
    assert backend.ran[-1] == "kubectl delete namespace demo-tiny --timeout=60s"
    assert "kubectl get pod/x -o jsonpath={.status.phase}" not in backend.ran
    assert signal.getsignal(number) == before


def test_one_ctrl_c_does_not_end_the_cleanup() -> None:
    backend = InterruptedBackend("kubectl delete pod")
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):  # when all is clean: no other story begins
        play(parse(STORY, "s"), backend, say=said.append)
    assert len(said) == 1
    assert "kgpu lab reset" in said[0]
    assert backend.ran[-1] == "kubectl delete namespace demo-tiny --timeout=60s"


def test_a_reader_that_went_away_does_not_end_the_cleanup() -> None:
    def gone(_: StepResult) -> None:
        raise BrokenPipeError

    backend = MemoryBackend({**READY, "kubectl delete pod": [CommandOutput(1, "no")]})
    with pytest.raises(BrokenPipeError):
        play(parse(STORY, "s"), backend, listener=gone)
    assert backend.ran[-2:] == [
        "kubectl get events --sort-by=.lastTimestamp",
        "kubectl delete namespace demo-tiny --timeout=60s",
    ]


def test_an_interrupted_command_takes_along_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    line = f"sleep 1000 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait"

    over = threading.Event()

    def interrupt() -> None:
        while not pid_file.exists():
            time.sleep(0.01)
        # Again, as a person would: one that comes just before Python waits is seen only when that wait ends.
        os.kill(os.getpid(), signal.SIGINT)
        while not over.wait(5):
            os.kill(os.getpid(), signal.SIGINT)

    # What was started in the background of a script ignores interrupts, and so do its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_command(["sh", "-c", line], "", os.environ)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    pid = int(pid_file.read_text())
    assert polling.holds(lambda: not container_processes.is_alive(pid), seconds=60, pause=0.01)


def test_a_command_that_takes_too_long_is_ended_with_what_it_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"

    class Slow(subprocess.Popen[str]):
        """Its time is over once it has said something, however long a busy machine takes until then."""

        def communicate(self, *words: Any, **options: Any) -> tuple[str, str]:
            assert polling.holds(said.exists, seconds=60, pause=0.01)
            return super().communicate(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    slow = run_command(["sh", "-c", f"echo begun; : > {said}; sleep 1000"], "", os.environ, timeout_s=0.1)
    assert slow.code == 124
    assert "begun" in slow.text


def test_commands_that_do_not_exist_or_read_what_they_are_given() -> None:
    assert run_command(["/nowhere/program"], "", os.environ).code == 127
    assert run_command(["cat"], "given", os.environ) == CommandOutput(0, "given")
