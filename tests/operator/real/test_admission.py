"""The agent's rights end at its own Node, at what is kgpu's there, and at its features; agents work within them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from tests.operator.own_node import (
    FEATURES,
    FEATURES_CRD,
    GRANTED,
    OTHER,
    OWN_LABEL,
    REFUSED,
    event,
    feature,
    granted_feature,
    refused_features,
)  # fmt: skip
from tests.operator.real.account import Account, account_of
from tests.operator.real.conftest import NAMESPACE, Object, Site

POLICY: Final = "validatingadmissionpolicy"
NAME: Final = "kgpu-agent-own-node"
POLICIES: Final = (
    NAME, "kgpu-agent-own-features", "kgpu-agent-own-events", "kgpu-operator-own-rights", "kgpu-node-orders",
    "kgpu-operation-approval", "kgpu-operation-record",
)  # fmt: skip
PUBLISHED: Final = f"/apis/{FEATURES}/namespaces/{NAMESPACE}/nodefeatures"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


OF_KIND: Final = {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation"}
OPERATIONS: Final = "/apis/kgpu.dev/v1alpha1/nodeoperations"
USUAL: Final = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
ON_OPERATIONS: Final[Object] = {"apiGroups": ["kgpu.dev"], "resources": ["nodeoperations", "nodeoperations/status"]}
# Somebody -> the ClusterRole: the chart's, or one of these.
PEOPLE: Final = {
    "requester": "kgpu-node-operations-requester", "approver": "kgpu-node-operations", "usual": "usual",
    "of-one": "of-one", "admin": "cluster-admin",
}  # fmt: skip
RULES: Final[dict[str, list[Object]]] = {
    "usual": [
        {**ON_OPERATIONS, "verbs": USUAL},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    ],
    "of-one": [
        {**ON_OPERATIONS, "verbs": USUAL},
        {**ON_OPERATIONS, "verbs": ["approve"], "resourceNames": ["waiting"]},
    ],
}
LETS, RECORDS = "needs the verb approve on nodeoperations.kgpu.dev", "needs the verb record on nodeoperations.kgpu.dev"
HOLDS: Final = "only the operator of kgpu"


@pytest.fixture
def people(site: Site) -> Iterator[tuple[Site, dict[str, Account]]]:
    """The chart's policies at work; its agent and operator, and people with roles. An operation ``waiting`` waits."""
    site.have("agent")
    rbac = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        }
        for name, rules in RULES.items()
    ]
    for name, its_role in PEOPLE.items():
        rbac += [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **bound(name, its_role, name)},
        ]
    waits = {"nodeName": site.node, "type": "Reboot", "approved": False}
    rbac.append({**OF_KIND, "metadata": {"name": "waiting"}, "spec": waits})
    whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": rbac})
    site.lab.kubectl("apply", "-f", "-", stdin=whole)
    accounts = {name: Account(site, name=name) for name in PEOPLE}
    yield (
        site,
        accounts | {"agent": account_of(site, "kgpu-agent"), "operator": Account(site, name="gpu-operator")},
    )
    site.lab.kubectl("delete", "-f", "-", stdin=whole)


def test_who_asks_for_operations_lets_them_begin_and_writes_their_record(
    people: tuple[Site, dict[str, Account]],
) -> None:
    """403 comes from the policies with their message, or from RBAC where somebody may not write the kind at all."""
    site, accounts = people
    of_node: Object = {"nodeName": site.node}
    reboot, maintenance = {**of_node, "type": "Reboot"}, {**of_node, "type": "Maintenance"}
    forced = {**maintenance, "drain": {"onTimeout": "Force"}}
    made = {
        "a reboot": reboot, "a reset": {**of_node, "type": "GpuReset", "gpus": ["GPU-1"]}, "a forced one": forced,
        "a maintenance": maintenance, "a reboot that waits": {**reboot, "approved": False},
        "a forced one that waits": {**forced, "approved": False},
    }  # fmt: skip
    changes: dict[str, tuple[str, Object]] = {
        "an approval": (f"{OPERATIONS}/waiting", {"spec": {"approved": True}}),
        "a cancellation": (f"{OPERATIONS}/waiting", {"spec": {"cancel": True}}),
        "a record": (f"{OPERATIONS}/waiting/status", {"status": {"phase": "Complete", "result": "Succeeded"}}),
        "an order": (f"/api/v1/nodes/{site.node}", {"metadata": {"annotations": {"kgpu.dev/operation": "{}"}}}),
        "a hold": (f"/api/v1/nodes/{site.node}", {"metadata": {"annotations": {"kgpu.dev/cordon": "x"}}}),
        "a label": (f"/api/v1/nodes/{site.node}", {"metadata": {"labels": {"team": "x"}}}),
    }
    # Who -> what they may do, and what the policies refuse; RBAC refuses the rest.
    asks = {"a maintenance", "a reboot that waits", "a forced one that waits"}
    begins = {"a reboot", "a reset", "a forced one"}
    says = {"an approval", "a cancellation"}
    marks = {"an order", "a hold"}
    expected: dict[str, tuple[set[str], set[str]]] = {
        "agent": (set(), {*marks, "a label"}),
        "requester": (asks, begins),
        "approver": (asks | begins | says, set()),
        "usual": ({*asks, "a cancellation", "a label"}, {*begins, "an approval", "a record", *marks}),
        "of-one": (asks | says, {*begins, "a record"}),
        "admin": ({*asks, *begins, *says, "a record", "a label"}, marks),
        "operator": ({*asks, "a cancellation", "a record", *marks, "a label"}, {*begins, "an approval"}),
    }
    words = dict.fromkeys((*begins, "an approval"), LETS) | {"a record": RECORDS} | dict.fromkeys(marks, HOLDS)
    wrong = []
    for who, (granted, refused) in expected.items():
        account = accounts[who]
        answers = {
            what: account.ask("POST", OPERATIONS, {**OF_KIND, "metadata": {"name": "tried"}, "spec": spec})
            for what, spec in made.items()
        } | {
            what: account.ask("PATCH", path, change, media="application/merge-patch+json")
            for what, (path, change) in changes.items()
        }
        for what, (code, said) in answers.items():
            by_policy = "an agent of kgpu may" if who == "agent" else words.get(what, "?")
            well = code in {200, 201} if what in granted else code in {403, 422}
            if not well or (what in refused) != (by_policy in said):
                wrong.append(f"{who}: {what}: {code} {said}")
            if what in refused and who != "agent" and code != 403:
                wrong.append(f"{who}: {what}: {code} is no 403")
    for who, verb, answer in (
        ("requester", "approve", "no"),
        ("approver", "approve", "yes"),
        ("operator", "record", "yes"),
    ):
        name = f"system:serviceaccount:{NAMESPACE}:{accounts[who].name}"
        said = site.lab.kubectl_run("auth", "can-i", verb, "nodeoperations.kgpu.dev", f"--as={name}").stdout.strip()
        if said != answer:
            wrong.append(f"can-i {verb} of {who}: {said}")
    assert "\n".join(wrong) == ""


@pytest.fixture(params=["agent", "operands"])
def installed(site: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Site, Account]]:
    """Agents at work behind the policy, and somebody with the token of one of them."""
    site.have(request.param)
    yield site, account_of(site, {"agent": "kgpu-agent", "operands": "nvidia-operator-validator"}[request.param])
    site.lab.kubectl_run("delete", "node", OTHER)


@pytest.fixture(scope="module")
def features_kind(site: Site) -> Iterator[Site]:
    """A cluster that has node feature discovery's kind, and had it before kgpu."""
    site.gone()
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(FEATURES_CRD))
    site.lab.kubectl("wait", "--for=condition=Established", f"crd/{FEATURES_CRD['metadata']['name']}")
    yield site
    site.gone()
    site.lab.kubectl("delete", "crd", FEATURES_CRD["metadata"]["name"])


@pytest.fixture(params=["agent", "operands"])
def publishing(features_kind: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Site, Account]]:
    """Agents at work where features are published; the account is the one that does that."""
    site = features_kind
    site.have(request.param)
    yield site, account_of(site, {"agent": "kgpu-agent", "operands": "nvidia-gpu-feature-discovery"}[request.param])
    site.lab.kubectl("-n", NAMESPACE, "delete", "nodefeatures", "--all")


def test_agents_work_within_it_and_nothing_else_is_granted(installed: tuple[Site, Account]) -> None:
    site, agent = installed
    for name in POLICIES:
        assert site.get(POLICY, name)["status"].get("typeChecking", {}).get("expressionWarnings", []) == [], name
    assert "nvidia.com/gpu.count" in site.node_labels()
    wrong = []
    for what, (status, change) in GRANTED.items():
        code, said = agent.patch(site.node, change, status=status)
        if code != 200:
            wrong.append(f"{what} is refused: {said}")
    for what, (status, change, word) in REFUSED.items():
        code, said = agent.patch(site.node, change, status=status)
        if code not in {403, 422} or "an agent of kgpu" not in said or word not in said:
            wrong.append(f"{what}: {code} {said}")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    code, said = agent.patch(OTHER, OWN_LABEL)
    if "only the Node that it runs on, which is " + site.node not in said:
        wrong.append(f"another Node: {code} {said}")
    loose = Account(site)
    code, said = loose.patch(site.node, OWN_LABEL)
    if "names no node" not in said:
        wrong.append(f"a token that names no node: {code} {said}")
    wrong += events_beyond(agent, site.node)
    roles = [one["metadata"]["name"] for one in site.get("roles", "-n", NAMESPACE)["items"]]
    wrong += [f"{name}, where nothing can be published" for name in roles if name.endswith("publish-features")]
    assert "\n".join(wrong) == ""
    site.uninstall()
    assert [site.get(POLICY, name) for name in POLICIES] == [None] * len(POLICIES)
    left = [key for key in site.node_labels() if key.startswith(("nvidia.com/", "feature.node.kubernetes.io/"))]
    assert left == []


def events_beyond(account: Account, node: str) -> list[str]:
    """What is wrong about the account's right to write Events: in ``default``, where those about Nodes are, and nowhere else."""
    wrong = []
    for namespace, wanted in (("default", 201), (NAMESPACE, 403), ("kube-system", 403)):
        tried = event(node, "tried")
        tried["metadata"]["namespace"] = namespace
        if namespace != "default":
            tried["involvedObject"] = {"kind": "Pod", "name": "x", "apiVersion": "v1", "namespace": namespace}
        code, said = account.ask("POST", f"/api/v1/namespaces/{namespace}/events", tried)
        if code != wanted:
            wrong.append(f"an Event in {namespace}: {code} {said}")
    return wrong


def test_features_are_those_of_the_agents_own_node(publishing: tuple[Site, Account]) -> None:
    site, agent = publishing
    place = f"{PUBLISHED}/nvidia-features-for-"
    site.until(lambda: agent.ask("POST", PUBLISHED, granted_feature(site.node))[0] == 201, "the right to publish")
    wrong = []
    for what, (given, word) in refused_features(site.node).items():
        code, said = agent.ask("POST", PUBLISHED, given)
        if code not in {403, 422} or word not in said:
            wrong.append(f"{what}: {code} {said}")
    for of in (OTHER, site.node):
        site.lab.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(feature(of)))
    change = {"spec": {"labels": {"nvidia.com/gpu.count": "3"}}}
    for of, granted in ((OTHER, False), (site.node, True)):
        for method, body in (("PATCH", change), ("DELETE", None)):
            code, said = agent.ask(method, place + of, body, media="application/merge-patch+json")
            if (code == 200) != granted or not (granted or "may change only the NodeFeature" in said):
                wrong.append(f"{method} of {of}'s: {code} {said}")
    loose = Account(site, name=agent.name)
    code, said = loose.ask("DELETE", place + site.node)
    if "names no node" not in said:
        wrong.append(f"a token that names no node: {code} {said}")
    wrong += rights_beyond(Account(site, name="gpu-operator"))
    assert "\n".join(wrong) == ""


def rights_beyond(operator: Account) -> list[str]:
    """What is wrong about the operator's right to change ClusterRoles and their bindings."""
    wrong = []
    for kind in ("clusterroles", "clusterrolebindings"):
        for method, body in (("PATCH", {"metadata": {"labels": {"a": "b"}}}), ("DELETE", None)):
            code, said = operator.ask(
                method, f"{RBAC}/{kind}/system:node-proxier", body, media="application/merge-patch+json"
            )
            # A change is refused before that for what the operator itself may not do; a deletion by nothing else.
            if code not in {403, 422} or (method == "DELETE" and "of its operands" not in said):
                wrong.append(f"{method} of {kind}: {code} {said}")
    for what, (path, body, word) in escalations(operator.name).items():
        code, said = operator.ask("POST", path, body)
        if code not in {403, 422} or word not in said:
            wrong.append(f"{what}: {code} {said}")
    # What the operator has itself it may give on, to operands' accounts: that is its work.
    for what, (path, body) in given_on().items():
        code, said = operator.ask("POST", path, body)
        if code != 201:
            wrong.append(f"{what}: {code} {said}")
    return wrong


def role(name: str, *resources: str) -> Object:
    return {"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["get"]}]}


def bound(name: str, to: str, account: str, kind: str = "ClusterRole") -> Object:
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": to},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }


def escalations(own: str) -> dict[str, tuple[str, Object, str]]:
    """How the operator's account would get at more than it has: the place, what it would make, and a word of the refusal.

    Names of operands pass the policy; there the API server's own rule holds, that nobody gives what he has not got.
    """
    roles, bindings = f"{RBAC}/clusterroles", f"{RBAC}/clusterrolebindings"
    within = f"{RBAC}/namespaces/{NAMESPACE}"
    more, prefix = "not currently held", "of its operands"
    return {
        "a ClusterRole of another name": (roles, role("mine", "pods"), prefix),
        "a binding of another name": (bindings, bound("mine", "kgpu:agent", own), prefix),
        "a ClusterRole of secrets": (roles, role("nvidia-x", "secrets"), more),
        "a ClusterRole of everything": (roles, role("kgpu-x", "*"), more),
        "itself an administrator": (bindings, bound("nvidia-x", "cluster-admin", own), more),
        "an agent an administrator": (bindings, bound("kgpu-x", "cluster-admin", "kgpu-agent"), more),
        "a Role of secrets": (f"{within}/roles", role("nvidia-x", "secrets"), more),
        "an administrator of its namespace": (f"{within}/rolebindings", bound("nvidia-x", "admin", own), more),
    }


def given_on() -> dict[str, tuple[str, Object]]:
    return {
        "a ClusterRole of what it has": (f"{RBAC}/clusterroles", role("nvidia-x", "nodes", "pods")),
        "a binding of its own": (f"{RBAC}/clusterrolebindings", bound("nvidia-x", "kgpu:agent", "nvidia-x")),
    }
