"""What the process that follows policies on idle GPUs may do: nothing by default, and writes only where it is let."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.usage.reclaim import owners, reading
from kgpu.usage.reclaim.model import read_policy
from kgpu.usage.reclaim.requests import KEPT_RESOURCES
from tests.charts.conftest import Chart, Made

ON = ("usage.enabled=true", "usage.reclaim.enabled=true")


def roles(made: Made, kind: str) -> dict[str, list[dict[str, Any]]]:
    return {
        obj["metadata"].get("namespace", ""): obj["rules"]
        for obj in made.objects
        if obj["kind"] == kind and obj["metadata"]["name"] == "kgpu-reclaim"
    }


def writes(rules: list[dict[str, Any]]) -> set[str]:
    return {
        resource for rule in rules if {"patch", "create", "delete", "update"} & {*rule["verbs"]}
        for resource in rule["resources"]
    }  # fmt: skip


def test_nothing_by_default(chart: Chart) -> None:
    made = chart("usage.enabled=true")
    assert "KGPU_RECLAIM" not in str(made.one("Deployment", "kgpu-usage"))
    assert not roles(made, "Role")
    assert not roles(made, "ClusterRole")


def test_it_reads_and_writes_its_record_alone(chart: Chart) -> None:
    made = chart(*ON, "usage.reclaim.secrets={slack}")
    assert writes(roles(made, "ClusterRole")[""]) == {"gpuusagepolicies/status"}
    (own,) = roles(made, "Role").values()
    assert writes(own) == {"configmaps", "leases"}
    pod = made.one("Deployment", "kgpu-usage")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "KGPU_RECLAIM", "value": "true"} in pod["env"]
    (secrets,) = [rule for rule in own if rule["resources"] == ["secrets"]]
    assert (secrets["resourceNames"], secrets["verbs"]) == (["slack"], ["get"])


def test_it_changes_workloads_where_it_is_let(chart: Chart) -> None:
    found = roles(chart(*ON, "usage.reclaim.namespaces={team-a,team-b}"), "Role")
    assert {"team-a", "team-b"} < set(found)
    wanted = {f"{row.plural}" for row in (*KEPT_RESOURCES, owners.KUEUE_WORKLOADS) if row is not owners.JOB_SETS}
    scaled = {f"{row}/scale" for row in ("deployments", "replicasets", "statefulsets", "leaderworkersets")}
    assert writes(found["team-a"]) == {*wanted, *scaled, "events"}
    through = chart(*ON, "usage.reclaim.namespaces={team-a}", "usage.history.throughApiServer=true")
    asked = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}
    assert asked in roles(through, "Role")["team-a"]
    assert asked not in found["team-a"]
    pods = roles(chart(*ON, "usage.reclaim.namespaces={team-a}", "usage.reclaim.barePods=true"), "Role")["team-a"]
    assert writes(pods) - writes(found["team-a"]) == {"pods", "pods/eviction"}


def test_it_may_read_all_that_it_looks_at(chart: Chart) -> None:
    rules = roles(chart(*ON), "ClusterRole")[""]
    may = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    looked = (
        *owners.CLIMBED.values(),
        owners.KUEUE_WORKLOADS,
        reading.AUTOSCALERS,
        reading.SCALED_OBJECTS,
        reading.DISRUPTION_BUDGETS,
    )
    assert {(row.group, row.plural) for row in looked} <= may


POLICY: dict[str, Any] = {
    "mode": "reclaim", "namespaces": ["team-a"], "idle": {"after": "45m"},
    "notify": [{"type": "slack", "secretRef": {"name": "gpu-costs"}, "template": "{who} wastes {perHour} an hour"}],
    "cost": {"pricesConfigMap": "contract"}, "protect": {"labels": {"tier": "gold"}},
}  # fmt: skip


def test_a_policy_of_the_values_is_one_of_the_cluster(chart: Chart) -> None:
    made = chart(*ON, "usage.reclaim.namespaces={team-a}", values={"usage": {"policy": POLICY}})
    policy = made.one("GPUUsagePolicy", "kgpu")
    assert policy["spec"] == POLICY
    read = read_policy(policy, "gpu-operator")
    assert read.policy is not None, read.problem
    assert (read.policy.prices, read.policy.notice.window) == ("contract", 2700.0)
    (secrets,) = [rule for rule in roles(made, "Role")["gpu-operator"] if rule["resources"] == ["secrets"]]
    assert secrets["resourceNames"] == ["gpu-costs"]
    lists = made.one("Role", "kgpu-usage")["rules"][-1]
    assert (lists["resources"], lists["resourceNames"], lists["verbs"]) == (["configmaps"], ["contract"], ["get"])
    assert not chart(*ON).has("GPUUsagePolicy", "kgpu")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key that is not known": ({"mode": "notify", "notifi": []}, "did you mean usage.policy.notify?"),
    "a key inside": ({"idle": {"aftr": "1h"}}, "did you mean usage.policy.idle.after?"),
    "a word": ({"mode": "reclam"}, "usage/policy/mode"),
    "a duration": ({"idle": {"after": "soon"}}, "usage/policy/idle/after"),
    "a number that is too large": ({"budget": {"maxSharePercent": 101}}, "usage/policy/budget/maxSharePercent"),
    "a receiver without its secret": ({"notify": [{"type": "slack"}]}, "secretRef"),
    "a template without end": (
        {"notify": [{"type": "slack", "secretRef": {"name": "a"}, "template": "x" * 501}]},
        "template",
    ),
    "the system": ({"mode": "reclaim", "namespaces": ["kube-system"]}, "usage.policy reclaims in kube-system"),
    "namespaces without the right": ({"mode": "reclaim", "namespaces": ["team-b"]}, "usage.policy reclaims in team-b"),
    "no namespaces": ({"mode": "reclaim"}, "names no namespaces"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_policy_that_can_not_be_is_refused(chart: Chart, case: str) -> None:
    policy, said = WRONG[case]
    made = chart(*ON, "usage.reclaim.namespaces={team-a}", values={"usage": {"policy": policy}})
    assert made.code != 0
    assert said in made.error


def test_a_policy_that_nobody_follows_is_refused(chart: Chart) -> None:
    made = chart("usage.enabled=true", values={"usage": {"policy": {"mode": "notify"}}})
    assert "usage.reclaim.enabled is false" in made.error


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((*ON, "usage.reclaim.namespaces={kube-system}"), "usage.reclaim.namespaces names kube-system"),
        (("usage.reclaim.enabled=true",), "usage.enabled or usage.history.enabled is false"),
        ((*ON, "usage.history.enabled=false"), "usage.enabled or usage.history.enabled is false"),
        ((*ON, "usage.reclaim.namespace={a}"), "namespace"),
    ],
)
def test_what_is_wrong_is_refused(chart: Chart, sets: tuple[str, ...], said: str) -> None:
    made = chart(*sets)
    assert made.code != 0
    assert said in made.error
