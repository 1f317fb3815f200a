"""Every rule has an example: broken gives its id first, healthy gives nothing; and hostile input breaks no rule."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from kgpu.doctor.model import Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_json, as_sarif, as_text, as_yaml
from kgpu.doctor.rules import all_rules, by_id
from kgpu.doctor.snapshot import Snapshot
from tests.budget import count
from tests.doctor.example import Example, all_examples

EXAMPLES = all_examples()
IDS = [one.name for one in EXAMPLES]
NASTY: tuple[Any, ...] = (
    None,
    "",
    -1,
    2.5,
    True,
    [],
    {},
    [None],
    {"": None},
    "x" * 5000,
    "\x1b[31m\n\u202e",
    ["a"],
    {"items": 3},
)


def shown(report: Report) -> str:
    return as_text(report)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_broken_names_the_cause_first(example: Example) -> None:
    report = diagnose(example.snapshot(example.broken), strict=True)
    assert report.findings, "nothing was found"
    first = report.findings[0]
    assert first.id == example.rule, shown(report)
    assert first.evidence, "a finding without evidence"
    assert first.remedy, "a finding without a remedy"


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_healthy_is_silent(example: Example) -> None:
    report = diagnose(example.snapshot(example.healthy), strict=True)
    assert not report.findings, shown(report)


@pytest.mark.parametrize("example", [one for one in EXAMPLES if one.unlike], ids=lambda one: one.name)
def test_what_is_broken_in_another_way_is_not_taken_for_it(example: Example) -> None:
    assert example.unlike is not None
    report = diagnose(example.snapshot(example.unlike), strict=True)
    assert report.exit_code == 1, "nobody tells of it"
    assert example.rule not in {each.id for root in report.findings for each in root.all()}, shown(report)


def test_every_rule_has_an_example() -> None:
    assert {rule.id for rule in all_rules()} == {one.rule for one in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_hostile_objects_break_no_rule(example: Example) -> None:
    for seed in range(count(1, 10)):
        dice = random.Random(f"{example.name}{seed}")
        objects = [spoiled(copy.deepcopy(one), dice) for one in example.broken]
        report = diagnose(Snapshot.of(objects, taken=example.taken), strict=True)
        for text in (as_text(report), as_json(report), as_yaml(report), as_sarif(report, all_rules())):
            assert "\x1b" not in text
            text.encode()


def spoiled(value: Any, dice: random.Random, depth: int = 0) -> Any:
    """The same with a value here and there replaced by something that has no business there."""
    if depth > 1 and dice.random() < 0.04:
        return copy.deepcopy(dice.choice(NASTY))
    if isinstance(value, dict):
        return {key: spoiled(one, dice, depth + 1) if key != "kind" or depth else one for key, one in value.items()}
    if isinstance(value, list):
        return [spoiled(one, dice, depth + 1) for one in value]
    return value


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_names_and_words_of_others_change_nothing(example: Example) -> None:
    """Korean annotations, another operator's pods and a healthy neighbour beside it do not hide the cause."""
    objects = copy.deepcopy(example.broken)
    for one in objects:
        if one["kind"] in ("Pod", "Node", "DaemonSet"):
            one["metadata"].setdefault("annotations", {})["example.com/설명"] = "이 노드는 학습용입니다"
    objects.append(
        {
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "웹"},
            "spec": {"nodeName": "cpu-9", "containers": [{"name": "a", "image": "nginx"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )
    report = diagnose(example.snapshot(objects), strict=True)
    assert report.findings[0].id == example.rule, shown(report)


def test_ids_are_the_catalogues() -> None:
    """Beside them are last resorts, two groups that it has no rows about: POD, what the kubelet says of any pod, and
    NOP, kgpu's own operations on nodes; what kgpu's upgrades of drivers wait for; Intel's driver that is not
    there, nodes that no DeviceConfig selects, an IOMMU that translates between GPUs, and AMD's partition profiles.
    """
    from tests.doctor.catalogue import ROWS

    assert not any(name.startswith(("POD-", "NOP-")) for name in ROWS)
    more = {"DRV-30", "DRV-31", "INT-04", "AMD-19", "AMD-20", "AMD-21"}
    own = more | {name for name, rule in by_id().items() if rule.last_resort or name.startswith(("POD-", "NOP-"))}
    assert by_id().keys() - own <= set(ROWS)
