"""Whole plans: golden files, and what holds for every cluster."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import agent_report, names
from kgpu.formats.crd.clusterpolicy import SandboxWorkloads
from kgpu.operator.model import NodeLayout, ObservedCluster, OperatorSettings
from kgpu.operator.nodes import read_node
from kgpu.operator.plan import plan
from tests.budget import tries
from tests.operator import golden_plans
from tests.operator.world import NAMESPACE, SETTINGS, driver, node_object, policy, report, settle, trouble


@pytest.mark.parametrize("case", golden_plans.cases())
def test_golden(case: str) -> None:
    assert golden_plans.plan_for(case) == golden_plans.load(case)["plan"]


ROLE = st.builds(
    agent_report.role,
    st.sampled_from(["running", "waiting", "failed", "stopped", "starting", "left", "??"]),
    st.sampled_from(["", "no room", "x" * 500]),
    st.sampled_from(["", "NoRoom", "not a word"]),
)
REPORTS = st.none() | st.builds(
    lambda generation, gpus, roles: with_roles(report(generation, gpus=gpus), roles),
    st.integers(0, 2),
    st.sampled_from([0, 8]),
    st.dictionaries(st.sampled_from(["features", "toolkit", "validator", "deviceplugin", "labels", "?"]), ROLE),
)


def with_roles(said: agent_report.AgentReport, roles: dict[str, agent_report.RoleReport]) -> agent_report.AgentReport:
    return agent_report.AgentReport(
        version=said.version,
        generation=said.generation,
        roles={**said.roles, **roles},
        driver=said.driver,
        driver_source=said.driver_source,
        gpus=said.gpus,
    )


TAINT = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["dedicated", names.GPU_RESOURCE, names.TAINT_NOT_READY, ""]),
        "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule", "?"]),
    }
)
LABELS = st.dictionaries(
    st.sampled_from(
        [
            *(names.LABEL_GPU_PRESENT, names.LABEL_DEPLOY_OPERANDS, names.LABEL_WORKLOAD_CONFIG, "pool"),
            *(names.LABEL_DEPLOY_PREFIX + "driver", names.LABEL_DEPLOY_PREFIX + "device-plugin"),
            *(names.DEVICE_PLUGIN_CONFIG_LABEL, names.LABEL_DRIVER_OWNER, names.LABEL_MIG_CAPABLE),
        ]
    ),
    st.sampled_from(["true", "false", "", "any", "paused-for-driver-upgrade", "special", "vm-vgpu"]),
    max_size=4,
)
NODES = st.lists(
    st.builds(
        lambda **fields: fields,
        gpus=st.sampled_from([0, 8]),
        labels=LABELS,
        features=st.booleans(),
        report=REPORTS,
        ready=st.booleans(),
        taints=st.lists(TAINT, max_size=2),
        runtime=st.sampled_from(["containerd://2.1.4", "cri-o://1.34", "docker://1", ""]),
        validated=st.none()
        | st.tuples(
            st.sampled_from(["True", "False", "Unknown"]), st.sampled_from(["Why", "no word", ""]), st.text(max_size=20)
        ),
    ),
    max_size=4,
)
SPECS: Any = st.sampled_from(
    [
        {},
        {"driver": {"enabled": False}},
        {"driver": {"enabled": True, "useNvidiaDriverCRD": True}},
        {"driver": {"image": "a b"}},
        {"driver": 5},
        {"devicePlugin": {"config": {"name": "configs", "default": "any"}}, "gfd": {"enabled": False}},
        {"sandboxWorkloads": {"enabled": True}, "nodeStatusExporter": {"enabled": True}},
        {"cdi": {"enabled": False, "nriPluginEnabled": True}, "toolkit": {"enabled": False}},
        {"daemonsets": {"tolerations": [{"operator": "Exists"}], "rollingUpdate": {"maxUnavailable": "x"}}},
    ]
)
DRIVERS: Any = st.lists(
    st.sampled_from([{"default": True}, {"nodeSelector": {"pool": "special"}}, {"nodeSelector": {}}]), max_size=3
)


@st.composite
def clusters(draw: st.DrawFn) -> ObservedCluster:
    """Any cluster, mostly an unhappy one."""
    many = draw(NODES)
    specs = draw(st.lists(SPECS, max_size=2))
    on = [f"n{index}" for index in range(len(many))]
    ask = draw(st.sampled_from(["", "ImagePullBackOff", "Starting", "not a word"]))
    return ObservedCluster(
        nodes=tuple(read_node(node_object(name, **fields)) for name, fields in zip(on, many, strict=True)),
        policies=tuple(
            policy(f"p{index}", spec=spec, deleting=draw(st.booleans())) for index, spec in enumerate(specs)
        ),
        drivers=tuple(driver(f"d{index}", spec=spec) for index, spec in enumerate(draw(DRIVERS))),
        foreign_nfd=draw(st.booleans()),
        foreign_operator=draw(st.sampled_from(["", "", "", "other/gpu-operator"])),
        troubles=tuple(trouble(name, ask, "said") for name in on[:1]) if ask else (),
        failures=draw(st.sampled_from([{}, {names.AGENT_DAEMON_SET: "exceeded quota: few"}])),
        apply_errors=draw(st.sampled_from([{}, {}, {"RuntimeClass/nvidia": "no"}])),
        config_maps=draw(st.sampled_from([{}, {"configs": frozenset({"other"})}])),
    )


SETTINGS_OF_ALL_SORTS = st.builds(
    OperatorSettings,
    namespace=st.just(NAMESPACE),
    image=st.just("example.org/kgpu:1"),
    layout=st.sampled_from(NodeLayout),
    discovery=st.booleans(),
)
REASON = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_OFF = SandboxWorkloads()


@given(clusters(), SETTINGS_OF_ALL_SORTS)
@tries(150)
def test_once_carried_out_nodes_are_not_planned_again(observed: ObservedCluster, told: OperatorSettings) -> None:
    assert plan(settle(observed, told), told).nodes == ()


@given(clusters(), SETTINGS_OF_ALL_SORTS)
@tries(150)
def test_once_written_the_status_is_the_same_again(observed: ObservedCluster, told: OperatorSettings) -> None:
    first = plan(observed, told)
    written = dataclasses.replace(
        observed,
        policies=tuple(
            dataclasses.replace(one, status=_stamped(first.policy_status.get(one.name, {})))
            for one in observed.policies
        ),
    )
    again = plan(written, told)
    assert again.policy_status == {name: _stamped(status) for name, status in first.policy_status.items()}


def _stamped(status: dict[str, Any]) -> dict[str, Any]:
    times = [{**one, "lastTransitionTime": "2026-01-01T00:00:00Z"} for one in status.get("conditions", [])]
    return {**status, "conditions": times}


@given(clusters(), SETTINGS_OF_ALL_SORTS)
@tries(150)
def test_the_order_of_nodes_does_not_matter(observed: ObservedCluster, told: OperatorSettings) -> None:
    assert plan(observed, told) == plan(dataclasses.replace(observed, nodes=observed.nodes[::-1]), told)


@given(clusters(), SETTINGS_OF_ALL_SORTS)
@tries(150)
def test_conditions_are_such_as_the_api_server_takes(observed: ObservedCluster, told: OperatorSettings) -> None:
    made = plan(observed, told)
    wrong = [
        one
        for status in (*made.policy_status.values(), *made.driver_status.values())
        for one in status["conditions"]
        if one["status"] not in ("True", "False", "Unknown") or not REASON.fullmatch(one["reason"])
    ]
    assert wrong == []


@given(clusters(), SETTINGS_OF_ALL_SORTS)
@tries(150)
def test_ready_only_where_every_gpu_of_every_node_is_validated(
    observed: ObservedCluster, told: OperatorSettings
) -> None:
    made = plan(observed, told)
    ready = [name for name, status in made.policy_status.items() if status["state"] == "ready"]
    spec = {one.name: one for one in observed.policies}
    sandbox = [name for name in ready if (spec[name].spec.sandbox_workloads or _OFF).enabled]
    after = settle(observed, told).nodes if ready and not sandbox else ()
    assert [
        node.name
        for node in after
        if node.labels.get(names.LABEL_DEPLOY_PREFIX + "operator-validator") == "true"
        and (
            names.VALIDATED_CONDITION not in node.conditions
            or node.conditions[names.VALIDATED_CONDITION].status != "True"
        )
    ] == []


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    observed = ObservedCluster(policies=(policy(),), nodes=(read_node(node_object()),))
    first = _stamped(plan(observed, SETTINGS).policy_status["cluster-policy"])
    again = dataclasses.replace(observed, policies=(policy(status=first),))
    times = [
        one.get("lastTransitionTime") for one in plan(again, SETTINGS).policy_status["cluster-policy"]["conditions"]
    ]
    assert set(times) == {"2026-01-01T00:00:00Z"}
