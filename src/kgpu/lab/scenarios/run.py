"""Play a scenario on a lab: step after step, telling what is typed, what came back, and whether that is right.

The first step that is not as expected ends the story, and so does Ctrl-C; the cleanup is done in any case.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import yaml

from kgpu.base import signals
from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.lab.scenarios.model import Expect, Scenario, ScenarioStep, fill, verdict

_REPEAT_S: Final = 0.5
_COMMAND_S: Final = 180.0
_EVIDENCE_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed (both streams) and its exit status."""

    code: int
    text: str


class Backend(Protocol):
    """A lab that scenarios can be played on."""

    name: str

    def values(self) -> Mapping[str, str]:
        """What ``${NODE}``, ``${HW_ROOT}`` and ``${KUBECONFIG}`` stand for."""
        ...

    def command(self, words: Sequence[str], stdin: str | None = None) -> CommandOutput:
        """Run ``kubectl ...``, ``kgpu ...`` or ``sh -c ...`` against the lab."""
        ...

    def inside(self, namespace: str) -> AbstractContextManager[Backend]:
        """The same lab with another default namespace, as ``kubectl config set-context --namespace`` sets it."""
        ...


class LocalBackend:
    """A lab on this machine, reached with a kubeconfig; simulated hardware is under ``hw_root``."""

    def __init__(self, name: str, *, kubeconfig: Path, kubectl: str, hw_root: Path, node: str) -> None:
        self.name = name
        self._kubectl = kubectl
        self._kubeconfig = kubeconfig
        self._hw_root = hw_root
        self._node = node
        self._values = {"NODE": node, "HW_ROOT": str(hw_root), "KUBECONFIG": str(kubeconfig)}

    def values(self) -> Mapping[str, str]:
        return self._values

    def command(self, words: Sequence[str], stdin: str | None = None) -> CommandOutput:
        program = self._programs().get(words[0], [words[0]])
        source = str(Path(__file__).resolve().parents[3])
        modules = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
        search = os.pathsep.join([str(self._kubeconfig.parent / "bin"), os.environ.get("PATH", "")])
        env = {**os.environ, **self._values, "PYTHONPATH": modules, "PATH": search}
        return run_command([*program, *words[1:]], stdin or "", env)

    def _programs(self) -> dict[str, list[str]]:
        return {"kubectl": [self._kubectl], "kgpu": [sys.executable, "-m", "kgpu"]}

    @contextlib.contextmanager
    def inside(self, namespace: str) -> Iterator[Backend]:
        config = yaml.safe_load(self._kubeconfig.read_text())
        for entry in config["contexts"]:
            entry["context"]["namespace"] = namespace
        with tempfile.TemporaryDirectory(prefix="kgpu-scenario-") as folder:
            copy = Path(folder, "kubeconfig")
            write_atomic(copy, json.dumps(config), mode=0o600)
            # So that a shell line of a story finds the same programs.
            for program, words in self._programs().items():
                line = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
                write_atomic(Path(folder, "bin", program), line, mode=0o755)
            yield LocalBackend(
                self.name, kubeconfig=copy, kubectl=self._kubectl, hw_root=self._hw_root, node=self._node
            )


def run_command(
    argv: Sequence[str], stdin: str, env: Mapping[str, str], timeout_s: float = _COMMAND_S
) -> CommandOutput:
    """Run a command to its end; exit status 124 when it takes longer than ``timeout_s``, 127 when it can't be run."""
    try:
        # A session of its own: Ctrl-C is for the story, which then ends the command with all that it started.
        process = subprocess.Popen(
            signals.with_defaults(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env=env, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return CommandOutput(127, str(error))
    with process:
        try:
            text, _ = process.communicate(stdin, timeout=timeout_s)
            return CommandOutput(process.returncode, text)
        except subprocess.TimeoutExpired:
            _end(process)
            return CommandOutput(124, f"{process.communicate()[0]}\nno answer within {timeout_s:.0f} s")
        except BaseException:
            _end(process)
            process.wait()
            raise


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step as it went. ``command`` is what a person would type; ``why`` is "" when all is as expected.

    ``evidence`` is what the cluster itself says about a step that went wrong; ``varies`` and ``repeats`` are
    the step's own.
    """

    title: str
    command: str
    output: str
    seconds: float
    why: str = ""
    evidence: str = ""
    varies: str = ""
    repeats: str = ""

    @property
    def ok(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """How a scenario went on a backend."""

    scenario: str
    backend: str
    seconds: float
    steps: tuple[StepResult, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        return all(step.ok for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """As ``kgpu lab run -o json`` prints it."""
        steps = [{**asdict(step), "ok": step.ok} for step in self.steps]
        return {
            "scenario": self.scenario,
            "backend": self.backend,
            "ok": self.ok,
            "seconds": self.seconds,
            "steps": steps,
        }


Listener = Callable[[StepResult], None]


def play(
    scenario: Scenario,
    backend: Backend,
    *,
    listener: Listener | None = None,
    say: Callable[[str], None] | None = None,
    keep: bool = False,
) -> ScenarioResult:
    """Play ``scenario``; each finished step is told to ``listener`` at once. ``keep`` leaves its objects for a look.

    Interrupted (SIGINT, SIGTERM), while its steps are played or while it cleans up, it cleans up and then raises
    KeyboardInterrupt; ``say`` tells that it does.
    """
    begun = time.monotonic()
    results: list[StepResult] = []
    tell = listener or (lambda _: None)
    with signals.untraced_interrupts(), Interrupts(say or (lambda _: None)) as interrupts:
        try:
            _make_namespace(scenario, backend)
            with backend.inside(scenario.namespace) as inner:
                try:
                    for step in scenario.steps:
                        results.append(play_step(step, inner))
                        tell(results[-1])
                        interrupts.check()
                        if not results[-1].ok:
                            break
                finally:
                    interrupts.hold()
                    # Told afterwards: a reader of the output that went away must not end the cleanup.
                    cleanup = () if keep else _clean_up(scenario, inner)
                    wrong = [result for result in cleanup if not result.ok]
        finally:
            interrupts.hold()
            if not keep:
                backend.command(["kubectl", "delete", "namespace", scenario.namespace, "--timeout=60s"])
        interrupts.end()
        for result in wrong:
            results.append(result)
            tell(result)
    seconds = round(time.monotonic() - begun, 2)
    return ScenarioResult(scenario=scenario.name, backend=backend.name, seconds=seconds, steps=tuple(results))


def _clean_up(scenario: Scenario, backend: Backend) -> list[StepResult]:
    return [play_step(step, backend) for step in scenario.cleanup]


class Interrupts:
    """While a story is played, SIGINT and SIGTERM end it; while it cleans up, they must come twice to end that too.

    Only the main thread gets signals; in any other one this does nothing.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._patience = 0  # signals that are answered with words
        self._came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """End the story where a signal has come whose exception was lost, as in a weak reference's callback."""
        if self._patience:
            raise KeyboardInterrupt

    def end(self) -> None:
        """The cleanup is over: raise the interrupt that came while it went on."""
        if self._came:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """The cleanup begins: from here on one signal does not interrupt."""
        self._patience = max(self._patience, 1)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self._came = True
        if self._patience == 1:
            self._patience = 2
            self._say("still cleaning up; once more leaves the rest to `kgpu lab reset`")
            return
        if self._patience == 0:
            self._patience = 1
            self._say("interrupted; cleaning up")
        raise KeyboardInterrupt


def _make_namespace(scenario: Scenario, backend: Backend) -> None:
    """A fresh namespace, and the service account without which no pod can be made in it."""
    backend.command(["kubectl", "delete", "namespace", scenario.namespace, "--ignore-not-found", "--wait=true"])
    output = backend.command(["kubectl", "create", "namespace", scenario.namespace])
    deadline = time.monotonic() + _COMMAND_S / 3
    account = ["kubectl", "get", "serviceaccount", "default", "--namespace", scenario.namespace]
    while output.code == 0 and backend.command(account).code != 0:
        if time.monotonic() > deadline:
            output = CommandOutput(1, "no default service account was made in it")
        time.sleep(_REPEAT_S / 5)
    if output.code != 0:
        raise LabError(
            f"namespace {scenario.namespace} can't be made: {output.text.strip()}",
            "a lab that is up",
            '"kgpu lab status" tells whether it is',
        )


def play_step(step: ScenarioStep, backend: Backend) -> StepResult:
    """One step, repeated for ``within`` seconds until it is as expected."""
    begun = time.monotonic()
    words, stdin, shown, expect = translate(step, backend.values())
    while True:
        outcome = backend.command(words, stdin)
        why = verdict(expect, outcome.text, outcome.code)
        if not why or time.monotonic() - begun >= step.within:
            break
        time.sleep(max(_REPEAT_S, (time.monotonic() - begun) / 10))  # a long wait is no reason to keep the machine busy
    return StepResult(
        title=step.title,
        command=shown,
        output=outcome.text.rstrip(),
        seconds=round(time.monotonic() - begun, 2),
        why=why,
        evidence=_evidence(backend) if why else "",
        varies=step.varies,
        repeats=step.repeats,
    )


def _evidence(backend: Backend) -> str:
    """The pods and the last events of the story's namespace."""
    commands = (
        ["kubectl", "get", "pods", "-o", "wide"],
        ["kubectl", "get", "events", "--sort-by=.lastTimestamp"],
    )
    texts = [backend.command(words).text.rstrip().splitlines() for words in commands]
    return "\n".join(line for lines in texts for line in [*lines[:1], *lines[1:][-_EVIDENCE_LINES:]])


def translate(step: ScenarioStep, values: Mapping[str, str]) -> tuple[list[str], str | None, str, Expect]:
    """A step as (words to run, standard input, what a person would type, what to expect)."""
    action = step.action
    if action == "apply":
        manifest = fill(step.apply or "", values)
        return (
            ["kubectl", "apply", "-f", "-"],
            manifest,
            f"kubectl apply -f - <<EOF\n{manifest.rstrip()}\nEOF",
            step.expect,
        )
    if action == "sh":
        line = fill(step.sh or "", values)
        return ["sh", "-c", line], None, line, step.expect
    expect = step.expect
    if action == "delete":
        line = f"kubectl delete {fill(step.delete or '', values)}"
    elif step.wait is not None:
        line = f"kubectl get {fill(step.wait.object, values)} -o {shlex.quote(f'jsonpath={step.wait.jsonpath}')}"
        expect = Expect(equals=fill(step.wait.equals, values))
    else:
        line = fill(step.run or "", values)
    return shlex.split(line), None, line, expect
