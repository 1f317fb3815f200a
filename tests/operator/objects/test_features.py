"""The right to publish a node's features: only where the API server has such objects, and for who publishes."""

from __future__ import annotations

import dataclasses

import pytest

from kgpu.formats import names
from kgpu.operator.leaving import outliving_policy
from kgpu.operator.model import ObservedCluster, OperatorSettings
from kgpu.operator.objects import rbac
from kgpu.operator.rendering.agent_settings import agent_config
from tests.operator.objects.scenes import HOST_DRIVER, OPERANDS, SETTINGS, Case, policy

KIND = frozenset({"nodefeatures.nfd.k8s-sigs.io"})
LAYOUTS = [(SETTINGS, "kgpu-agent"), (OPERANDS, "nvidia-gpu-feature-discovery")]


def roles(settings: OperatorSettings, observed: ObservedCluster) -> dict[str, list[str]]:
    """By the name of a Role that lets somebody publish: the accounts that have it."""
    found = Case(policy=policy(HOST_DRIVER), settings=settings, observed=observed).rendered()
    assert not found.errors
    given = [one for one in found.objects if one["kind"] == "Role" and rbac.NODE_FEATURES in one["rules"]]
    bound = {one["metadata"]["name"]: one for one in found.objects if one["kind"] == "RoleBinding"}
    names = [one["metadata"]["name"] for one in given]
    return {name: [subject["name"] for subject in bound[name]["subjects"]] for name in names}


@pytest.mark.parametrize(("settings", "account"), LAYOUTS, ids=["agent", "operands"])
@pytest.mark.parametrize("foreign", [True, False])
def test_where_the_kind_is_the_publisher_has_it(settings: OperatorSettings, account: str, foreign: bool) -> None:
    """Also when no discovery works there any more: what was published has to be taken back."""
    observed = ObservedCluster(foreign_nfd=foreign, kinds=KIND)
    assert roles(settings, observed) == {f"{account}-publish-features": [account]}


@pytest.mark.parametrize(("settings", "account"), LAYOUTS, ids=["agent", "operands"])
def test_where_it_is_not_nobody_has_it(settings: OperatorSettings, account: str) -> None:
    assert roles(settings, ObservedCluster()) == {}


@pytest.mark.parametrize(("settings", "account"), LAYOUTS, ids=["agent", "operands"])
def test_where_rules_are_carried_out_the_finder_has_it_too(settings: OperatorSettings, account: str) -> None:
    ruled = dataclasses.replace(settings, feature_rules=True)
    finder = "kgpu-node-features"
    assert roles(ruled, ObservedCluster(kinds=KIND)) == {
        f"{one}-publish-features": [one] for one in (account, finder)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("observed", "told"),
    [
        (ObservedCluster(kinds=KIND), True),
        (ObservedCluster(), False),
        (ObservedCluster(kinds=KIND, foreign_nfd=True), False),
    ],
)
def test_agents_tell_the_operator_where_it_carries_out_rules(observed: ObservedCluster, told: bool) -> None:
    ruled = dataclasses.replace(SETTINGS, feature_rules=True)
    assert agent_config(policy(), ruled, observed).feature_rules is told
    assert not agent_config(policy(), SETTINGS, observed).feature_rules


@pytest.mark.parametrize("settings", [SETTINGS, OPERANDS], ids=["agent", "operands"])
def test_who_looks_for_features_is_told_how(settings: OperatorSettings) -> None:
    """An agent by its document, the pods that look where no accelerator is known by a variable."""
    config = "core: {sleepInterval: 30s}"
    chosen = dataclasses.replace(settings, features_config=config)
    found = Case(policy=policy(HOST_DRIVER), settings=chosen).rendered()
    (finder,) = (
        one for one in found.objects if one["kind"] == "DaemonSet" and one["metadata"]["name"] == "kgpu-node-features"
    )
    env = {row["name"]: row.get("value") for row in finder["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env[names.ENV_FEATURES_CONFIG] == config
    told = agent_config(policy(), chosen, ObservedCluster()).roles["features"].env
    assert told == ({names.ENV_FEATURES_CONFIG: config} if settings is SETTINGS else {})
    assert not agent_config(policy(), settings, ObservedCluster()).roles["features"].env


def test_the_role_comes_before_the_settings_that_tell_agents_to_publish() -> None:
    observed = ObservedCluster(foreign_nfd=True, kinds=KIND)
    found = Case(policy=policy(HOST_DRIVER), settings=SETTINGS, observed=observed).rendered()
    kinds = [(one["kind"], one["metadata"]["name"]) for one in found.objects]
    assert kinds.index(("RoleBinding", "kgpu-agent-publish-features")) < kinds.index(
        ("ConfigMap", names.AGENT_CONFIG_MAP)
    )


@pytest.mark.parametrize(("settings", "account"), LAYOUTS, ids=["agent", "operands"])
def test_it_outlives_the_policy_so_that_agents_take_back_what_they_have_published(
    settings: OperatorSettings, account: str
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gpu-operator", "uid": "u"}
    found = Case(policy=policy(HOST_DRIVER), settings=settings, observed=ObservedCluster(kinds=KIND)).rendered()
    ours = [one for one in found.objects if one["metadata"]["name"] == f"{account}-publish-features"]
    assert {one["kind"] for one in ours} == {"Role", "RoleBinding"}
    for one in ours:
        assert [row["kind"] for row in outliving_policy(one, owner)["metadata"]["ownerReferences"]] == ["Deployment"]


@pytest.mark.parametrize("settings", [SETTINGS, OPERANDS], ids=["agent", "operands"])
def test_pods_see_the_folder_of_feature_files(settings: OperatorSettings) -> None:
    """Agents by the host's whole root; the pod without privileges by the folder itself."""
    found = Case(policy=policy(HOST_DRIVER), settings=settings, observed=ObservedCluster()).rendered()
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in found.objects if one["kind"] == "DaemonSet"
    }
    finder = pods[names.FINDER_DAEMON_SET]
    seen = {one["mountPath"]: one for one in finder["containers"][0]["volumeMounts"]}
    volume = seen[names.HOST_ROOT + names.NFD_FOLDER]
    assert volume["readOnly"]
    sources = {one["name"]: one.get("hostPath") for one in finder["volumes"]}
    assert sources[volume["name"]] == {"path": names.NFD_FOLDER, "type": "DirectoryOrCreate"}
    if settings is SETTINGS:
        agent = pods[names.AGENT_DAEMON_SET]["containers"][0]
        assert names.HOST_ROOT in {one["mountPath"] for one in agent["volumeMounts"]}
