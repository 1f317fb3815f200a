"""What the chart has for OpenShift: constraints that admit kgpu's pods and no more, and rights for what the operator reads."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest

from kgpu.kube import kinds
from kgpu.operations import act_pods
from kgpu.operator import openshift, watching
from kgpu.operator.objects.openshift import FOR_AGENTS, FOR_DRIVERS, FOR_FINDER
from tests import openshift as served
from tests.charts.conftest import NAMESPACE, Chart, Made, Object
from tests.lab.embedded.support import whole
from tests.operator import account_rights
from tests.operator.objects.scenes import CASES, Case

ON = "platform.openshift=true"
KIND = "SecurityContextConstraints"
OF_OPENSHIFT = ("config.openshift.io", "image.openshift.io", "security.openshift.io")


def is_of_openshift(obj: Object) -> bool:
    rules = {group for rule in obj.get("rules") or () for group in rule["apiGroups"]}
    return obj["apiVersion"].partition("/")[0] in OF_OPENSHIFT or bool(rules & set(OF_OPENSHIFT))


def rights(made: Made, account: str) -> dict[str, set[tuple[str, str, str]]]:
    found = account_rights.rights_of(account, made.objects)
    return {place: {one for one in every if "openshift.io" in one[0]} for place, every in found.items()}


def test_other_clusters_get_nothing_of_it(chart: Chart) -> None:
    made = chart()
    assert not [one for one in made.objects if is_of_openshift(one)]
    assert {one["metadata"].get("namespace", "") for one in made.objects} == {"", NAMESPACE, "default"}


def test_a_cluster_that_helm_sees_to_be_openshift_gets_it_by_itself(chart: Chart) -> None:
    seen = chart(words=("--api-versions", "security.openshift.io/v1"))
    assert seen.objects == chart(ON).objects
    assert {one["metadata"]["name"] for one in seen.objects if one["kind"] == KIND} == {
        FOR_AGENTS, FOR_DRIVERS, FOR_FINDER,
    }  # fmt: skip


def test_the_operator_may_read_what_it_follows_and_no_more(chart: Chart) -> None:
    found = rights(chart(ON), "gpu-operator")
    wanted: dict[str, set[tuple[str, str, str]]] = {}
    for feed in watching.feeds(NAMESPACE):
        resource, (named,) = feed.scope.resource, feed.scope.selector.fields or (("", ""),)
        if resource.group in OF_OPENSHIFT:
            row = {(kinds.plural_and_group(resource), named[1], verb) for verb in ("list", "watch")}
            wanted.setdefault(feed.scope.namespace, set()).update(row)
    use = wanted.setdefault(NAMESPACE, set())
    names = ("nonroot-v2", FOR_AGENTS, FOR_DRIVERS, FOR_FINDER)
    use |= {(kinds.plural_and_group(kinds.SECURITY_CONTEXT_CONSTRAINTS), name, "use") for name in names}
    assert {place: every for place, every in found.items() if every} == wanted
    assert openshift.NAMESPACE in wanted


def test_nobody_makes_constraints_or_uses_those_of_others(chart: Chart) -> None:
    made = chart(ON)
    uses: dict[str, set[str]] = {}
    for one in made.objects:
        for rule in one.get("rules") or ():
            if rule["apiGroups"] == ["security.openshift.io"]:
                assert rule["verbs"] == ["use"]
                assert one["kind"] == "Role"
                uses[one["metadata"]["name"]] = set(rule["resourceNames"])
    assert uses == {
        "gpu-operator-openshift": {"nonroot-v2", FOR_AGENTS, FOR_DRIVERS, FOR_FINDER},
        "kgpu-agent-openshift": {FOR_AGENTS}, "kgpu-crds-openshift": {"nonroot-v2"},
    }  # fmt: skip
    assert not [one for one in made.objects if one["kind"] == KIND and (one["users"] or one["groups"])]


@pytest.mark.parametrize("case", ["openshift", "openshift-operands", "openshift-objects"])
def test_the_operator_grants_only_what_it_has(chart: Chart, case: str) -> None:
    own = account_rights.rights_of("gpu-operator", chart(ON).objects)[NAMESPACE]
    for one in CASES[case].rendered().objects:
        if one["kind"] == "Role":
            assert {row for row in account_rights.of_rules(one["rules"]) if "openshift" in row[0]} <= own


def constraints(made: Made) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in made.objects if one["kind"] == KIND}


async def test_an_api_server_takes_constraints_of_the_published_shape(chart: Chart, tmp_path: Path) -> None:
    async with whole(tmp_path, "controllers") as cluster:
        kind = kinds.SECURITY_CONTEXT_CONSTRAINTS
        await cluster.api.create(kinds.CUSTOM_RESOURCE_DEFINITIONS, served.definition(kind, served.CONSTRAINTS))
        await cluster.until(lambda: cluster.core.kinds.stored(kind.group, kind.plural), "the kind")
        for name, wanted in constraints(chart(ON)).items():
            taken = await cluster.api.create(kind, copy.deepcopy(wanted))
            # A field that the schema lacks would be gone.
            lost = {key for key, value in wanted.items() if key != "metadata" and taken.get(key) != value}
            assert not lost, name


def account_of(objects: tuple[Object, ...], account: str) -> str:
    """The constraints that an account of the operator's is let use."""
    bound = [
        one["roleRef"]["name"]
        for one in objects
        if one["kind"] == "RoleBinding" and one["subjects"][0]["name"] == account
    ]
    rules = [
        rule for one in objects if one["kind"] == "Role" and one["metadata"]["name"] in bound for rule in one["rules"]
    ]
    names = [name for rule in rules if rule["apiGroups"] == ["security.openshift.io"] for name in rule["resourceNames"]]
    return names[0] if names else ""


def pods(case: Case) -> dict[str, tuple[str, Object]]:
    """By DaemonSet: the constraints that its account uses, and the pod's spec."""
    objects = case.rendered().objects
    found: dict[str, tuple[str, Object]] = {}
    for one in objects:
        if one["kind"] == "DaemonSet":
            spec = one["spec"]["template"]["spec"]
            by_chart = FOR_AGENTS if spec["serviceAccountName"] == "kgpu-agent" else ""
            found[one["metadata"]["name"]] = (by_chart or account_of(objects, spec["serviceAccountName"]), spec)
    return found


@pytest.mark.parametrize("case", ["openshift", "openshift-operands", "openshift-objects"])
def test_every_pod_is_admitted_by_the_constraints_of_its_account(chart: Chart, case: str) -> None:
    known = constraints(chart(ON))
    found = pods(CASES[case])
    assert len(found) >= 3
    for name, (which, spec) in found.items():
        assert which, f"{name}: its account may use none"
        assert served.refusals(spec, known[which]) == [], name
        if which != FOR_FINDER:
            assert served.refusals(spec, known[FOR_FINDER]), f"{name} needs no more than the finder"


def test_with_everything_that_a_policy_can_ask_of_pods(chart: Chart) -> None:
    known = constraints(chart(ON))
    for case in ("operands-full", "driver-full"):
        on = dataclasses.replace(CASES["openshift"].observed, config_maps=CASES[case].observed.config_maps)
        for name, (which, spec) in pods(dataclasses.replace(CASES[case], observed=on)).items():
            assert served.refusals(spec, known[which]) == [], name


def test_pods_that_act_on_nodes_are_admitted_by_the_operators_own_right(chart: Chart) -> None:
    known = constraints(chart(ON))
    acts = (
        (act_pods.reset_container("id", "boot", ("GPU-1",), "image", "Always"), act_pods.reset_volumes()),
        (act_pods.reboot_container("id", "boot", "image", "Always"), act_pods.reboot_volumes()),
    )
    for container, volumes in acts:
        pod = {"hostPID": True, "automountServiceAccountToken": False, "containers": [container], "volumes": volumes}
        assert served.refusals(pod, known[FOR_AGENTS]) == []
        assert served.refusals(pod, known[FOR_FINDER])


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        ((), False),
        ((ON,), True),
        ((ON, "operator.use_ocp_driver_toolkit=false"), False),
        (("operator.use_ocp_driver_toolkit=true",), True),
    ],
)
def test_drivers_are_built_in_the_toolkit_on_openshift_unless_the_values_say_otherwise(
    chart: Chart, sets: tuple[str, ...], wanted: bool
) -> None:
    assert chart(*sets).policy["operator"]["use_ocp_driver_toolkit"] is wanted
