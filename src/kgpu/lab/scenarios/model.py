"""What a scenario file says, read strictly.

::

    name: first-gpu-pod
    title: A pod gets two GPUs
    vendor: nvidia          # whose accelerators its node has to have; any by default
    story: ...
    steps:
      - title: what happens, for the reader
        apply: |            # manifests, as "kubectl apply -f -"
          ...
      - title: ...
        run: kubectl get node ${NODE}    # kubectl, kgpu, or with "sh: ..." any shell line
        within: 30          # seconds: repeat until the expectations hold; 0 (default): once
        expect:
          contains: ["Test PASSED"]
        repeats: why          # the same line may come any number of times; each is then compared once
        varies: why           # two labs may print different things here; "kgpu lab conform" does not compare them
    cleanup:                # run at the end in any case
      - run: ...

Each step has exactly one of ``apply``, ``delete``, ``wait``, ``run`` and ``sh``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from kgpu.base.errors import LabError
from kgpu.base.suggest import did_you_mean
from kgpu.base.typed import convert
from kgpu.hw.vendor import vendors

ACTIONS: Final = ("apply", "delete", "wait", "run", "sh")
PROGRAMS: Final = ("kubectl", "kgpu")
VALUES: Final = ("NODE", "HW_ROOT", "KUBECONFIG")  # that a lab fills in
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?")


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the output must be like. ``count`` maps a regular expression to how often it must match (per line)."""

    equals: str | None = None
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()
    count: dict[str, int] = {}
    fails: bool = False  # the command must end with an error


class Wait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object's field, as kubectl's jsonpath, that must get a value. ``object`` is ``pod/name``."""

    object: str
    jsonpath: str
    equals: str


class ScenarioStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step; see the module.

    ``varies`` says why its output may differ from lab to lab, ``repeats`` why lines of it may come any number of times,
    as one for each time that a controller tried; "" when they may not.
    """

    title: str = ""
    apply: str | None = None
    delete: str | None = None
    wait: Wait | None = None
    run: str | None = None
    sh: str | None = None
    expect: Expect = Expect()
    within: float = 0.0
    varies: str = ""
    repeats: str = ""

    @property
    def action(self) -> str:
        """Which of ``ACTIONS`` this step is."""
        return next(name for name in ACTIONS if getattr(self, name) is not None)


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole scenario. It is played in a namespace of its own, ``demo-NAME``, which is removed afterwards."""

    name: str
    title: str
    steps: tuple[ScenarioStep, ...]
    vendor: str = ""
    story: str = ""
    cleanup: tuple[ScenarioStep, ...] = ()

    @property
    def namespace(self) -> str:
        return f"demo-{self.name}"


def bundled() -> dict[str, Path]:
    """The scenarios that come with kgpu: name -> file."""
    folder = Path(str(resources.files(__package__)))
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def load(name_or_path: str) -> Scenario:
    """A bundled scenario by name, or any file by path (anything with a ``/`` or ``.yaml``). Raises LabError."""
    known = bundled()
    path = known.get(name_or_path)
    if path is None and ("/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))):
        path = Path(name_or_path)
    if path is None:
        hint = did_you_mean(name_or_path, known)
        raise LabError(
            f'there is no scenario "{name_or_path}"' + (f"; {hint}" if hint else ""),
            f"one of {', '.join(known)}, or a file's path",
            '"kgpu lab run --list" tells what each one shows',
        )
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {error}", "a readable scenario file", "check the path") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Scenario:
    """Read a scenario. Raises LabError that names ``source`` and the place in it."""
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LabError(f"{source} is not YAML: {error}", "a scenario in YAML", "correct the file") from error
    try:
        scenario = convert(raw, Scenario)
    except (msgspec.ValidationError, RecursionError) as error:
        raise LabError(
            f"{source}: {error}{_hint(error)}", "the keys and types of a scenario", "correct the file"
        ) from error
    _check(scenario, source)
    return scenario


def _hint(error: Exception) -> str:
    unknown = re.search(r"unknown field `([^`]*)`", str(error))
    if unknown is None:
        return ""
    known = {name for kind in (Scenario, ScenarioStep, Expect, Wait) for name in kind.__struct_fields__}
    hint = did_you_mean(unknown.group(1), known)
    return f"; {hint}" if hint else ""


def _check(scenario: Scenario, source: str) -> None:
    if not _NAME.fullmatch(scenario.name):
        raise LabError(
            f'{source}: "{scenario.name}" can\'t be a name', "lower-case letters, digits, dashes", "rename it"
        )
    if scenario.vendor and scenario.vendor not in vendors():
        hint = did_you_mean(scenario.vendor, vendors())
        raise LabError(
            f'{source}: vendor "{scenario.vendor}"{"; " if hint else ""}{hint}', f"one of {', '.join(vendors())}",
            "correct it, or leave it out for any",
        )  # fmt: skip
    if not scenario.steps:
        raise LabError(f"{source}: it has no steps", "at least one step", "tell what is done, and what must come of it")
    for number, step in enumerate((*scenario.steps, *scenario.cleanup), start=1):
        where = f'{source}: step {number} ("{step.title}")'
        chosen = [name for name in ACTIONS if getattr(step, name) is not None]
        if len(chosen) != 1:
            raise LabError(
                f"{where} has {' and '.join(chosen) or 'no action'}", f"exactly one of {', '.join(ACTIONS)}", "split it"
            )
        if step.run is not None and (step.run.split() or [""])[0] not in PROGRAMS:
            raise LabError(
                f'{where} runs "{step.run}"', f"a command of {' or '.join(PROGRAMS)}", 'use "sh" for other commands'
            )
        if step.run is not None and {"|", ">", "&&", ";"} & set(step.run.split()):
            raise LabError(
                f'{where}: "{step.run}" is a shell\'s line', "one command, which no shell reads", 'use "sh" for it'
            )
        for text in filter(None, (step.run, step.sh, step.apply, step.delete)):
            _check_values(text, where)
        for pattern in (*step.expect.matches, *step.expect.count):
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise LabError(
                    f'{where}: "{pattern}" is no regular expression: {error}', "one as Python knows them", "correct it"
                ) from error


_VALUE: Final = re.compile(r"\$\{(?P<name>[A-Za-z_]+)\}")


def _check_values(text: str, where: str) -> None:
    """Names in ``${...}`` that are nearly one of the lab's; others are a shell's or a manifest's own."""
    for name in _VALUE.findall(text):
        hint = "" if name in VALUES else did_you_mean(name, VALUES)
        if hint and name.isupper():
            raise LabError(
                f"{where}: ${{{name}}} is no value of the lab; {hint}", f"one of {', '.join(VALUES)}", "correct it"
            )


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace ``${NAME}``; every other ``$`` stays, since shells and manifests have their own."""
    return _VALUE.sub(lambda hit: values.get(hit["name"], hit[0]), text)


def verdict(expect: Expect, output: str, code: int) -> str:
    """Why the output is not as expected, or "" when it is."""
    if (code != 0) != expect.fails:
        return f"the command ended with {code}, expected {'an error' if expect.fails else '0'}"
    text = output.strip()
    if expect.equals is not None and text != expect.equals:
        return f'expected exactly "{expect.equals}", got "{text[:200]}"'
    complaints: list[Any] = [
        *(f'"{part}" is not in the output' for part in expect.contains if part not in text),
        *(f'"{part}" is in the output' for part in expect.lacks if part in text),
        *(f"nothing matches /{item}/" for item in expect.matches if not re.search(item, text, re.MULTILINE)),
    ]
    for pattern, wanted in expect.count.items():
        got = len(re.findall(pattern, text, re.MULTILINE))
        if got != wanted:
            complaints.append(f"/{pattern}/ matches {got} times, expected {wanted}")
    return "; ".join(complaints)
