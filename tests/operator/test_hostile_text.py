"""Whatever nodes, pods and manifests say, nothing but printable text gets into statuses, Events and ``kgpu status``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice
from kgpu.formats import agent_report, names
from kgpu.formats.agent_report import AgentReport, RoleReport
from kgpu.operator import projections
from kgpu.operator.model import NodeLayout, ObservedCluster, OperatorSettings
from kgpu.operator.nodes import read_node
from kgpu.operator.overview import overview
from kgpu.operator.plan import plan
from tests.budget import tries
from tests.operator.world import NAMESPACE, OPERANDS_LAYOUT, ROLES, SETTINGS, node_object, settle

JUNK = st.text(st.sampled_from('aZ9 .:/"\\\n\t\0\x1b[\x7f\x85\u202e\u200b\u2028é😀'), max_size=12)
HALVES = st.text(st.sampled_from("a\ud800\udfff\0"), max_size=4)


def said(text: str) -> str:
    return json.dumps(text)[1:-1]


@st.composite
def reports(draw: st.DrawFn) -> AgentReport:
    state = st.sampled_from(["failed", "running", "waiting"]) | JUNK
    return AgentReport(
        version=draw(JUNK),
        generation=1,
        roles={name: RoleReport(state=draw(state), reason=draw(JUNK), why=draw(JUNK)) for name in ROLES},
        driver=draw(JUNK),
        driver_source=draw(st.sampled_from(["host", ""]) | JUNK),
        cuda=draw(JUNK),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Any:
    validated = (draw(st.sampled_from(["True", "False"]) | JUNK), draw(JUNK), draw(JUNK))
    node = node_object(name, report=draw(reports()), validated=validated, ready=draw(st.booleans()))
    for key in node["status"]["nodeInfo"]:
        node["status"]["nodeInfo"][key] = draw(st.just(node["status"]["nodeInfo"][key]) | JUNK)
    node["status"]["conditions"][0]["message"] = draw(JUNK)
    return node


@st.composite
def pods(draw: st.DrawFn, node: str) -> Any:
    state = draw(st.sampled_from(["waiting", "terminated", "running"]))
    container = {
        "name": draw(JUNK),
        "image": draw(JUNK),
        "state": {state: {"reason": draw(JUNK), "message": draw(JUNK), "exitCode": 1}},
    }
    owner = {"kind": "DaemonSet", "name": names.AGENT_DAEMON_SET, "controller": True}
    return {
        "metadata": {"name": f"pod-{node}", "ownerReferences": [owner]},
        "spec": {"nodeName": node},
        "status": draw(
            st.sampled_from(
                [
                    {"containerStatuses": [container]},
                    {"phase": "Failed", "reason": container["name"], "message": container["image"]},
                ]
            )
        ),
    }


@st.composite
def clusters(draw: st.DrawFn) -> ObservedCluster:
    junk = draw(JUNK)
    spec = draw(
        st.sampled_from(
            [
                {"driver": {"enabled": False}},
                {"driver": {"enabled": True, "version": junk, "image": junk}},
                {"driver": {"enabled": False}, "toolkit": {junk: 1}, "gfd": {"image": junk}},
                {"daemonsets": {"priorityClassName": junk, "updateStrategy": junk}},
                {"driver": {"enabled": False}, "devicePlugin": {"config": {"name": junk, "default": junk}}},
                {"driver": {"useNvidiaDriverCRD": True}},
                {"mig": junk},
            ]
        )
    )
    driver = {
        "metadata": {"name": "d", "uid": "d", "generation": 1},
        "spec": {"driverType": junk, "image": junk, "version": junk, "gds": {"enabled": True, "version": junk}},
    }
    policy = {"metadata": {"name": "p", "uid": "p", "generation": 1, "creationTimestamp": "2026"}, "spec": spec}
    event = {
        "involvedObject": {"kind": "DaemonSet", "name": names.AGENT_DAEMON_SET},
        "message": draw(JUNK),
        "reason": draw(JUNK),
    }
    there = [draw(nodes(name)) for name in ("n1", "n2")]
    reduced = [projections.pod(draw(pods(name))) for name in ("n1", "n2") if draw(st.booleans())]
    live = {names.AGENT_DAEMON_SET: {"metadata": {}, "status": {}}}
    return ObservedCluster(
        policies=(projections.policy(policy)["value"],),
        drivers=(projections.driver(driver)["value"],),
        nodes=tuple(map(read_node, there)),
        pods=projections.nodes_by_daemon_set(reduced),
        troubles=projections.troubles(reduced, [projections.warning(event)]),
        failures=projections.failures(live, [projections.warning(event)], {}),
        apply_errors=draw(st.sampled_from([{}, {"RuntimeClass/nvidia": draw(JUNK)}])),
    )


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from texts(key)
            yield from texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from texts(one)


def wrong(value: Any) -> list[str]:
    return [text for text in texts(msgspec.to_builtins(value)) if not text.isprintable()]


@given(clusters(), st.sampled_from([SETTINGS, OPERANDS_LAYOUT]))
@tries(200)
def test_what_people_are_shown_is_printable(observed: ObservedCluster, told: OperatorSettings) -> None:
    settled = settle(observed, told)
    made = plan(settled, told)
    assert wrong(made.policy_status) == []
    assert wrong(made.driver_status) == []
    advice: tuple[Advice, ...] = made.advice
    assert wrong([dataclasses.asdict(one) for one in advice]) == []
    assert wrong(dataclasses.asdict(overview(settled, told))) == []


@given(JUNK | HALVES)
def test_a_report_is_printable_or_none(text: str) -> None:
    whole = '{"version": "%s", "driver": "%s", "roles": {"%s": {"state": "%s", "reason": "%s"}}}' % ((said(text),) * 5)
    for raw in (text, whole, f'{{"version": "{text}"}}'):
        report = agent_report.decode(raw)
        if report is not None:
            assert wrong(report) == []
            assert agent_report.decode(agent_report.encode(report)) == report


def test_half_characters_are_no_report() -> None:
    assert agent_report.decode('{"version": "\ud800"}') is None
    assert agent_report.decode("\ud800") is None


def test_settings_of_the_test_are_both_layouts() -> None:
    assert {SETTINGS.layout, OPERANDS_LAYOUT.layout} == set(NodeLayout)
    assert SETTINGS.namespace == NAMESPACE
