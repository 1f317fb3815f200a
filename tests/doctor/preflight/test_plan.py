"""A preflight as a whole: answers said once, strangers told, odd nodes survived, healthy ones passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgpu.base.advice import Advice
from kgpu.doctor.preflight import render
from kgpu.doctor.preflight.model import PreflightVerdict
from kgpu.doctor.preflight.plan import CHECKS, GPUS, predict
from tests.budget import count
from tests.doctor.preflight.scenes import choice, host, ids, node, report, scene


def test_what_several_nodes_have_in_common_is_said_once() -> None:
    names = [f"gpu-{number}" for number in range(1, 9)]
    found = report(*(one for name in names for one in (node(name), host(name, secureBoot=True))))
    (said,) = found.failures
    assert said.nodes == tuple(names)
    assert isinstance(said, Advice)
    assert "enrol the key" in said.remedy
    text = render.as_text(found, 100)
    assert text.count("KRN-04") == 1
    assert "nodes gpu-1, gpu-2, gpu-3, gpu-4, gpu-5 and 3 more" in text


def test_what_is_unknown_is_said_once_with_one_way_to_look() -> None:
    found = report(node("a"), node("b"))
    assert {one.check for one in found.unknown} >= {"kernel headers", "nouveau", "Secure Boot"}
    assert all(one.nodes == ("a", "b") for one in found.unknown)
    assert render.as_text(found, 100).count("kgpu preflight --probe") == 1
    assert "as far as is known" in render.headline(found)


def test_nodes_of_which_nobody_knows_whether_they_have_gpus_are_told() -> None:
    plain = node("cpu-1")
    plain["metadata"]["labels"] = {}
    found = report(node(), host(), plain)
    assert [(one.check, one.nodes) for one in found.unknown] == [(GPUS, ("cpu-1",))]
    assert found.verdicts["cpu-1"] == {GPUS: PreflightVerdict.UNKNOWN}
    discovered = node("cpu-1")
    discovered["metadata"]["labels"] = {"feature.node.kubernetes.io/cpu-model.id": "1"}
    assert report(node(), host(), discovered).unknown == ()


def test_a_node_that_is_named_is_taken_for_one_with_gpus() -> None:
    plain = node("cpu-1")
    plain["metadata"]["labels"] = {}
    assert predict(scene(plain), ("cpu-1",)).nodes == ("cpu-1",)
    assert predict(scene(plain)).exit_code == 2


def test_no_node_at_all_is_no_good_news() -> None:
    found = report()
    assert found.exit_code == 2
    assert render.headline(found).startswith("No node is known to have NVIDIA GPUs")


def test_the_data_has_every_answer_by_node_and_check() -> None:
    found = report(node(), host(secureBoot=True), images={})
    data = json.loads(render.as_json(found))
    assert data["exit_code"] == 1
    assert data["predictions"][0]["id"] == "KRN-04"
    assert data["verdicts"]["gpu-1"]["Secure Boot"] == "fails"
    assert data["verdicts"]["gpu-1"]["driver image"] == "unknown"
    assert set(data["verdicts"]["gpu-1"]) == {row.name for row in CHECKS}


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=8) | st.sampled_from(["True", "v1.35", "10de"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FACTS = (
    "kernel", "headers", "headersOffered", "secureBoot", "modules", "pci", "libraries", "disks", "driverVersion",
    "missing", "osRelease",
)  # fmt: skip
INFO = ("kernelVersion", "osImage", "operatingSystem", "containerRuntimeVersion", "kubeletVersion")


@settings(max_examples=count(60, 600), deadline=None)
@given(
    facts=st.dictionaries(st.sampled_from(FACTS), ODD), info=st.dictionaries(st.sampled_from(INFO), ODD),
    conditions=ODD, labels=ODD, words=st.tuples(st.text(max_size=12), st.text(max_size=12)),
)  # fmt: skip
def test_no_node_is_so_odd_that_it_raises_or_is_passed_over(
    facts: dict[str, Any], info: dict[str, Any], conditions: Any, labels: Any, words: tuple[str, str]
) -> None:
    odd = node(**info)
    odd["status"]["conditions"] = conditions
    odd["metadata"]["labels"] = labels
    found = predict(scene(odd, host(**facts), driver=choice(version=words[0], os_tag=words[1])), ("gpu-1",))
    assert set(found.verdicts["gpu-1"]) == {row.name for row in CHECKS}
    told = {one.check for one in found.predictions} | {one.check for one in found.unknown}
    assert {name for name, one in found.verdicts["gpu-1"].items() if one is not PreflightVerdict.FINE} <= told
    json.loads(render.as_json(found))
    assert render.as_text(found, 80)


def test_what_objects_say_can_not_drive_a_terminal_or_become_a_command() -> None:
    evil = "6.8.0-rc1\x1b[2J; rm -rf /"
    found = report(node(kernelVersion=evil), driver=choice())
    assert ids(found) == ["KRN-01"]
    assert "\x1b" not in render.as_text(found, 100)
    assert not any("rm -rf" in step for one in found.predictions for step in one.steps)


@pytest.mark.parametrize("device", ["20b0", "2330", "26b9", "1eb8", "2901"])
def test_healthy_nodes_of_every_generation_have_nothing_predicted(device: str) -> None:
    found = report(node(), host(device=device))
    assert found.predictions == found.unknown == ()
