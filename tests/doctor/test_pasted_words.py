"""No word of an object, a log or a file becomes a command of its own in what an administrator is told to paste."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.doctor.plan import diagnose
from kgpu.doctor.rules import by_id
from tests.budget import sample
from tests.doctor.example import Example, all_examples

BAD = "; $(id)\nkubectl delete namespace prod"
COMMAND = re.compile(
    r"(?:or )?(?:on \S+: |on node \S+: )?(?:kubectl|kgpu|nvidia-|systemctl|helm|crictl|ctr|docker|modprobe|cat|ls|rm) ?\S"
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, (*path, key))
    elif isinstance(value, list):
        for position, one in enumerate(value):
            yield from leaves(one, (*path, position))
    elif isinstance(value, str):
        yield path, value


def changed(objects: list[dict[str, Any]], path: tuple[Any, ...], value: str) -> list[dict[str, Any]]:
    found = copy.deepcopy(objects)
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return found


def loose(step: str) -> bool:
    """Whether the hostile words stand outside quotes and comments of something that looks like a command."""
    if "\n" in step and not step.endswith("\nEOF"):
        return True
    return bool(COMMAND.match(step)) and "$(id)" in re.sub(r"'[^']*'", "", step.split(" # ", maxsplit=1)[0])


@pytest.mark.parametrize("example", all_examples(), ids=lambda one: one.name)
def test_hostile_values_stay_values(example: Example) -> None:
    rules = [by_id()[example.rule]]
    places = [(path, value) for path, value in leaves(example.broken) if path[1:] not in (("kind",), ("apiVersion",))]
    for path, value in sample(places, example.name):
        report = diagnose(example.snapshot(changed(example.broken, path, value + BAD)), rules=rules, strict=True)
        for finding in report.findings:
            assert not any(map(loose, finding.remedy)), (path, finding.remedy)
