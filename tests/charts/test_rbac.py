"""The chart's rights: the operator has what it grants to operands, the agent what its roles need, and no more."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import yaml

from kgpu.cli.operator import budget_of, operations_config_of
from kgpu.formats.names import AGENT_CONFIG_MAP, AGENT_DAEMON_SET
from kgpu.formats.operands import BY_ROLE
from kgpu.operator.objects import rbac
from kgpu.operator.operands import dra
from tests.charts.conftest import CHART, NAMESPACE, Chart, Made, Object
from tests.operator.rights import NAMESPACE_RULES, OF_EXPORTER, cluster_rules

Right = tuple[str, str, str]


def rights(rules: Iterable[Object]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def of_role(made: Made, kind: str, name: str) -> set[Right]:
    return rights(made.one(kind, name)["rules"])


def test_the_operator_may_do_what_it_grants(chart: Chart) -> None:
    made = chart()
    cluster = of_role(made, "ClusterRole", "kgpu:operator")
    namespaced = cluster | of_role(made, "Role", "gpu-operator")
    assert rights((*rbac.DRIVER_MANAGER_RULES, *OF_EXPORTER, *cluster_rules())) <= cluster
    assert rights((*rbac.FEATURE_RULES, *NAMESPACE_RULES)) <= namespaced


def test_the_agent_may_do_what_its_roles_need_and_no_more(chart: Chart) -> None:
    made = chart()
    assert of_role(made, "ClusterRole", "kgpu:agent") == rights(cluster_rules())
    assert of_role(made, "Role", "kgpu-agent") == rights(NAMESPACE_RULES)
    (rule,) = made.one("Role", "kgpu-agent")["rules"]
    assert rule["resourceNames"] == [AGENT_CONFIG_MAP], (
        "the operator adds what the policy and its operands have besides"
    )


def test_events_are_written_in_default_alone_by_the_operator_and_every_agent(chart: Chart) -> None:
    made = chart()
    for obj in made.objects:
        if obj["kind"] == "ClusterRole" and obj["metadata"]["name"].startswith("kgpu:"):
            assert "events" not in {resource for _, resource, _ in rights(obj["rules"])}
    binding = made.one("RoleBinding", "kgpu-events")
    assert binding["metadata"]["namespace"] == made.one("Role", "kgpu-events")["metadata"]["namespace"] == "default"
    assert rights(made.one("Role", "kgpu-events")["rules"]) == {("", "events", verb) for verb in ("create", "patch")}
    accounts = {AGENT_DAEMON_SET, "gpu-operator", *(operand.account for operand in BY_ROLE.values())}
    assert {(one["namespace"], one["name"]) for one in binding["subjects"]} == {(NAMESPACE, name) for name in accounts}


def test_node_features_are_no_right_of_every_agent(chart: Chart) -> None:
    """The operator gives it where the kind is: tests/operator/objects/test_features.py."""
    made = chart()
    for kind, name in (("Role", "kgpu-agent"), ("ClusterRole", "kgpu:agent")):
        assert "nodefeatures" not in {resource for _, resource, _ in of_role(made, kind, name)}


def test_the_agent_may_read_pods_everywhere_only_for_the_nri_plugin(chart: Chart) -> None:
    plain, nri = (of_role(made, "ClusterRole", "kgpu:agent") for made in (chart(), chart("cdi.nriPluginEnabled=true")))
    assert nri - plain == rights(cluster_rules("cdi: {nriPluginEnabled: true}")) - rights(cluster_rules())
    assert nri > plain
    operator = of_role(chart(), "ClusterRole", "kgpu:operator")
    assert nri - plain <= operator


@pytest.mark.parametrize("role", ["kgpu:agent", "kgpu:operator"])
def test_claims_are_a_right_only_where_there_can_be_any(chart: Chart, role: str) -> None:
    without, with_claims = (of_role(made, "ClusterRole", role) for made in (chart(), chart("dra.enabled=true")))
    added = rights(dra.CLAIM_RULES)
    assert with_claims == without | added
    assert added & without == (rights(OF_EXPORTER) & added if role == "kgpu:operator" else set())


def test_the_operator_reads_events_of_nodes_and_logs_of_its_own_pods_for_evidence(chart: Chart) -> None:
    made = chart()
    role = made.one("Role", "kgpu-operation-evidence")
    assert (role["metadata"]["namespace"], rights(role["rules"])) == ("default", {("", "events", "list")})
    own = of_role(made, "Role", "gpu-operator")
    assert {("", "pods/log", "get"), ("", "configmaps", "get")} <= own
    everywhere = {resource for _, resource, _ in of_role(made, "ClusterRole", "kgpu:operator")}
    assert not {"pods/log", "configmaps", "events"} & everywhere


def test_who_fetches_evidence_needs_a_role_that_is_bound_to_nobody(chart: Chart) -> None:
    made = chart()
    assert of_role(made, "Role", "kgpu-operation-bundles") == {("", "configmaps", "get")}
    assert not made.has("RoleBinding", "kgpu-operation-bundles")


def test_without_operations_there_are_no_rights_for_evidence(chart: Chart) -> None:
    made = chart("operations.enabled=false")
    for name in ("kgpu-operation-evidence", "kgpu-operation-bundles"):
        assert not made.has("Role", name)
        assert not made.has("RoleBinding", name)
    assert not {("", "pods/log", "get"), ("", "configmaps", "get")} & of_role(made, "Role", "gpu-operator")


def test_nobody_has_all_of_anything(chart: Chart) -> None:
    roles = [obj for obj in chart().objects if obj["kind"] in {"Role", "ClusterRole"}]
    assert {obj["kind"] for obj in roles} == {"Role", "ClusterRole"}
    for obj in roles:
        if obj["rules"]:
            for group, resource, verb in rights(obj["rules"]):
                assert "*" not in (group, resource, verb)
                assert resource not in {"secrets", "pods/exec", "serviceaccounts/token", "nodes/proxy"}
                assert verb not in {"escalate", "bind", "impersonate", "deletecollection"}


def test_the_doctors_role_is_that_of_the_document_and_bound_to_nobody(chart: Chart) -> None:
    document = CHART.parents[1] / "docs" / "how-to" / "doctor-rights.yaml"
    wanted = next(one for one in yaml.safe_load_all(document.read_text()) if one["kind"] == "ClusterRole")
    made = chart("doctor.clusterRole.labels.team=gpus")
    role = made.one("ClusterRole", wanted["metadata"]["name"])
    assert role["rules"] == wanted["rules"]
    assert {verb for _, _, verb in rights(role["rules"])} == {"list", "get"}
    assert role["metadata"]["labels"]["team"] == "gpus"
    assert not made.has("ClusterRoleBinding", "kgpu-doctor")
    assert not chart("doctor.clusterRole.enabled=false").has("ClusterRole", "kgpu-doctor")


def test_every_other_role_is_bound_to_one_account(chart: Chart) -> None:
    made = chart()
    bound = {
        (obj["roleRef"]["kind"], obj["roleRef"]["name"]): [subject["name"] for subject in obj["subjects"]]
        for obj in made.objects
        if obj["kind"].endswith("Binding") and obj["metadata"]["name"] != "kgpu-events"  # of several
    }
    assert bound == {
        ("ClusterRole", "kgpu:operator"): ["gpu-operator"],
        ("Role", "gpu-operator"): ["gpu-operator"],
        ("Role", "gpu-operator-cleanup"): ["gpu-operator"],
        ("Role", "kgpu-operation-evidence"): ["gpu-operator"],
        ("ClusterRole", "kgpu:agent"): ["kgpu-agent"],
        ("Role", "kgpu-agent"): ["kgpu-agent"],
        ("ClusterRole", "kgpu:crds"): ["kgpu-crds"],
    }
    accounts = {obj["metadata"]["name"] for obj in made.objects if obj["kind"] == "ServiceAccount"}
    assert accounts == {"gpu-operator", "kgpu-agent", "kgpu-crds"}


OPERATIONS = "kgpu.dev"


def verbs_on_operations(made: Made, role: str) -> set[str]:
    return {
        verb
        for group, kind, verb in of_role(made, "ClusterRole", role)
        if (group, kind) == (OPERATIONS, "nodeoperations")
    }


@pytest.mark.parametrize(
    ("policy", "approves"), [("Off", False), ("Suggest", False), ("Reset", True), ("Reboot", True), ("Replace", True)]
)
def test_the_operator_lets_operations_begin_only_where_repairs_may(chart: Chart, policy: str, approves: bool) -> None:
    verbs = verbs_on_operations(chart(f"operations.remediation.policy={policy}"), "kgpu:operator")
    assert ("approve" in verbs) is approves
    assert "record" in verbs


def test_nobody_else_writes_records(chart: Chart) -> None:
    roles = [one for one in chart().objects if one["kind"] in {"Role", "ClusterRole"}]
    assert [
        one["metadata"]["name"] for one in roles if (OPERATIONS, "nodeoperations", "record") in rights(one["rules"])
    ] == ["kgpu:operator"]


def test_who_asks_for_operations_does_not_approve_them(chart: Chart) -> None:
    made = chart()
    whole, asks = (f"kgpu-node-operations{name}" for name in ("", "-requester"))
    assert verbs_on_operations(made, asks) == {"get", "list", "watch", "create"}
    own = {(OPERATIONS, "nodeoperations", verb) for verb in ("patch", "delete", "approve")}
    assert of_role(made, "ClusterRole", whole) - of_role(made, "ClusterRole", asks) == own
    assert of_role(made, "ClusterRole", asks) < of_role(made, "ClusterRole", whole)
    off = chart("operations.enabled=false")
    assert not off.has("ClusterRole", whole)
    assert not off.has("ClusterRole", asks)
    assert verbs_on_operations(off, "kgpu:operator") == set()


@pytest.mark.parametrize(("sets", "there"), [((), False), (("operations.allowForce=true",), True),
                                             (("operations.allowForce=true", "operations.enabled=false"), False)])  # fmt: skip
def test_the_operator_deletes_pods_of_others_only_where_the_admin_allows_it(
    chart: Chart, sets: tuple[str, ...], there: bool
) -> None:
    assert (("", "pods", "delete") in of_role(chart(*sets), "ClusterRole", "kgpu:operator")) is there


def test_a_remediation_that_was_emptied_lets_nothing_begin(chart: Chart) -> None:
    made = chart(values={"operations": {"remediation": None}})
    assert "approve" not in verbs_on_operations(made, "kgpu:operator")


@pytest.mark.parametrize("allowed", [True, False])
def test_the_operator_is_told_whether_it_may(chart: Chart, allowed: bool) -> None:
    made = chart(f"operations.allowForce={str(allowed).lower()}")
    (container,) = made.one("Deployment", "gpu-operator")["spec"]["template"]["spec"]["containers"]
    (config,) = [row["value"] for row in container["env"] if row["name"] == "KGPU_OPERATIONS_CONFIG"]
    options = {"operations": "true", "operations_config": config}
    budget = budget_of(operations_config_of(options), options)
    assert budget is not None
    assert budget.allow_force is allowed
