"""The chart's policy at work on the embedded API: an agent may change its own Node, of that what is kgpu's, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.charts.conftest import NAMESPACE, chart_in
from tests.charts.test_admission import CLAIMS, DEVICES, EVENTS, FEATURES, KIND, KUBERNETES, NAME, NAMES, RIGHTS, SERVED
from tests.lab.embedded import served
from tests.lab.embedded.served import Server
from tests.operator.own_node import (
    FEATURES_CRD,
    GRANTED,
    OTHER,
    OWN_LABEL,
    REFUSED,
    devices_of,
    event,
    feature,
    granted_feature,
    refused_events,
    refused_features,
    refused_slices,
)  # fmt: skip

NODE = "own-node"
FINDER = "kgpu-node-features"
PODS = {"kgpu-agent": "agent", FINDER: "finder"}
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def made(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.ask("POST", path, body)
    assert answer.code == 201, answer.body
    found: dict[str, Any] = answer.value
    return found


@pytest.fixture(scope="module")
def server(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Nodes, an agent's pod, and the policies; the accounts have every right that RBAC knows."""
    objects = chart_in(helm, tmp_path_factory.mktemp("helm"))(CLAIMS, words=(*SERVED, *KUBERNETES))
    with served.running(tmp_path_factory.mktemp("api")) as found:
        made(found, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        subjects = []
        for name in ("kgpu-agent", FINDER, "gpu-operator"):
            made(found, ACCOUNTS, {"metadata": {"name": name}})
            subjects.append({"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE})
        rights = {
            "metadata": {"name": "agent"},
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": subjects,
        }
        made(found, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", rights)
        for name in (NODE, OTHER):
            labels = {"kubernetes.io/hostname": name}
            made(found, "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        for account, name in PODS.items():
            spec = {
                "nodeName": NODE, "serviceAccountName": account,
                "containers": [{"name": "c", "image": "registry.invalid/none"}],
            }  # fmt: skip
            made(found, f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": spec})
        made(found, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", FEATURES_CRD)
        for name in NAMES:
            made(found, f"{ADMISSION}/validatingadmissionpolicies", objects.one(KIND, name))
            made(found, f"{ADMISSION}/validatingadmissionpolicybindings", objects.one(f"{KIND}Binding", name))
        yield found


def token(server: Server, *, bound: bool = True, name: str = "kgpu-agent") -> str:
    reference = (
        {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": PODS.get(name, "agent")}} if bound else {}
    )
    found = made(server, f"{ACCOUNTS}/{name}/token", {"spec": reference})
    return str(found["status"]["token"])


def patch(server: Server, token: str, node: str, change: dict[str, Any], *, status: bool = False) -> tuple[int, str]:
    path = f"/api/v1/nodes/{node}{'/status' if status else ''}?dryRun=All"
    answer = server.ask("PATCH", path, change, media=STRATEGIC, token=token)
    return answer.code, answer.value.get("message", "")


@pytest.mark.parametrize(("status", "change"), GRANTED.values(), ids=GRANTED)
def test_what_is_the_agents_own(server: Server, status: bool, change: dict[str, Any]) -> None:
    assert patch(server, token(server), NODE, change, status=status) == (200, "")


@pytest.mark.parametrize(("status", "change", "word"), REFUSED.values(), ids=REFUSED)
def test_what_is_not(server: Server, status: bool, change: dict[str, Any], word: str) -> None:
    code, said = patch(server, token(server), NODE, change, status=status)
    assert code == 422
    assert said.startswith(
        f"nodes \"{NODE}\" is forbidden: ValidatingAdmissionPolicy '{NAME}' with binding '{NAME}' denied request: "
        "an agent of kgpu may"
    )
    assert word in said


def test_the_finder_says_features_of_its_node_and_how_it_is_and_nothing_else(server: Server) -> None:
    finder = token(server, name=FINDER)
    wrong = []
    for what, (status, change) in GRANTED.items():
        code, said = patch(server, finder, NODE, change, status=status)
        granted = what in {"labels of features", "its report", "its answer to an order"}
        if (code == 200) is not granted or not (granted or "that only looks for features" in said):
            wrong.append(f"{what}: {code} {said}")
    for what, (status, change, _) in REFUSED.items():
        code, said = patch(server, finder, NODE, change, status=status)
        if code != 422:
            wrong.append(f"{what}: {code} {said}")
    code, said = patch(server, finder, OTHER, {"metadata": {"labels": {"feature.node.kubernetes.io/x": "true"}}})
    assert (code, "only the Node that it runs on" in said) == (422, True)
    assert wrong == []


def test_other_nodes_and_tokens_that_name_none(server: Server) -> None:
    agent = token(server)
    code, said = patch(server, agent, OTHER, OWN_LABEL)
    assert code == 422
    assert f"only the Node that it runs on, which is {NODE}" in said
    answer = server.ask("POST", "/api/v1/nodes?dryRun=All", {"metadata": {"name": "made"}}, token=agent)
    assert answer.code == 422
    code, said = patch(server, token(server, bound=False), NODE, OWN_LABEL)
    assert code == 422
    assert "names no node" in said


OBJECTS = f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{NAMESPACE}/nodefeatures"


@pytest.mark.parametrize(("given", "word"), refused_features(NODE).values(), ids=refused_features(NODE))
def test_features_of_others_and_foreign_labels_are_refused(server: Server, given: dict[str, Any], word: str) -> None:
    answer = server.ask("POST", f"{OBJECTS}?dryRun=All", given, token=token(server))
    assert answer.code == 422
    assert f"ValidatingAdmissionPolicy '{FEATURES}'" in answer.value["message"]
    assert word in answer.value["message"]


@pytest.mark.parametrize("name", [f"nvidia-features-for-{NODE}", NODE])
def test_an_agent_writes_and_takes_back_the_features_of_its_own_node(server: Server, name: str) -> None:
    agent, own = token(server), granted_feature(NODE)
    own = {**own, "metadata": {**own["metadata"], "name": name}}
    place = f"{OBJECTS}/{own['metadata']['name']}"
    assert server.ask("POST", OBJECTS, own, token=agent).code == 201
    change = {"metadata": {"labels": {"nfd.node.kubernetes.io/node-name": OTHER}}}
    answer = server.ask("PATCH", place, change, media=MERGE, token=agent)
    assert (answer.code, "only of the Node that it runs on" in answer.value["message"]) == (422, True)
    assert "names no node" in server.ask("DELETE", place, token=token(server, bound=False)).value["message"]
    assert server.ask("DELETE", place, token=agent).code == 200


def test_an_agent_neither_changes_nor_deletes_those_of_another_node(server: Server) -> None:
    agent, other = token(server), feature(OTHER)
    place = f"{OBJECTS}/{other['metadata']['name']}"
    made(server, OBJECTS, other)
    for method, body in (("PATCH", {"spec": {"labels": {"nvidia.com/gpu.count": "3"}}}), ("DELETE", None)):
        answer = server.ask(method, place, body, media=MERGE, token=agent)
        assert (answer.code, "may change only the NodeFeature" in answer.value["message"]) == (422, True)
    assert server.ask("DELETE", place).code == 200


IN_DEFAULT = "/api/v1/namespaces/default/events"


@pytest.mark.parametrize("what", refused_events(NODE))
def test_events_of_others_and_in_others_names_are_neither_made_nor_changed_nor_read(server: Server, what: str) -> None:
    given, word = refused_events(NODE)[what]
    name = given["metadata"]["name"]
    own = event(NODE, f"{name}-own")
    made(server, IN_DEFAULT, given)
    made(server, IN_DEFAULT, own)
    turned = {key: given[key] for key in ("involvedObject", "source", "reportingComponent")}
    for account in PODS:
        agent = token(server, name=account)
        for method, path, body in (
            ("POST", f"{IN_DEFAULT}?dryRun=All", {**given, "metadata": {**given["metadata"], "name": "tried"}}),
            ("PATCH", f"{IN_DEFAULT}/{name}", {}),
            ("PATCH", f"{IN_DEFAULT}/{name}", {"count": 9}),
            ("PATCH", f"{IN_DEFAULT}/{name}", {key: own[key] for key in turned}),
            ("PATCH", f"{IN_DEFAULT}/{name}-own", turned),
            ("DELETE", f"{IN_DEFAULT}/{name}", None),
        ):
            answer = server.ask(
                method, path, body, media="application/json" if method == "POST" else MERGE, token=agent
            )
            assert answer.code == 422, (method, path, body)
            assert f"ValidatingAdmissionPolicy '{EVENTS}'" in answer.value["message"]
            assert word in answer.value["message"]
    for one in (name, f"{name}-own"):
        assert server.ask("DELETE", f"{IN_DEFAULT}/{one}").code == 200


def test_an_agent_writes_events_of_its_own_node_and_counts_them_up(server: Server) -> None:
    agent, own = token(server), event(NODE)
    place = f"{IN_DEFAULT}/{own['metadata']['name']}"
    assert server.ask("POST", IN_DEFAULT, own, token=agent).code == 201
    assert server.ask("PATCH", place, {}, media=MERGE, token=agent).value["count"] == 1
    assert server.ask("PATCH", place, {"count": 2}, media=MERGE, token=agent).value["count"] == 2
    answer = server.ask("PATCH", place, {}, media=MERGE, token=token(server, bound=False))
    assert (answer.code, "names no node" in answer.value["message"]) == (422, True)
    assert server.ask("PATCH", place, {"count": 3}, media=MERGE).code == 200  # who is no agent is not meant
    assert server.ask("DELETE", place).code == 200


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.mark.parametrize("what", refused_slices(NODE))
def test_an_agent_neither_makes_nor_changes_nor_deletes_devices_of_others(server: Server, what: str) -> None:
    given, word = refused_slices(NODE)[what]
    agent, place = token(server), f"{SLICES}/{given['metadata']['name']}"
    made(server, SLICES, given)
    for method, path, body in (
        ("POST", f"{SLICES}?dryRun=All", {**given, "metadata": {"name": "tried"}}),
        ("PATCH", place, {"metadata": {"labels": {"a": "b"}}}),
        ("DELETE", place, None),
    ):
        answer = server.ask(method, path, body, media="application/json" if method == "POST" else MERGE, token=agent)
        assert answer.code == 422, (method, answer.body)
        assert f"ValidatingAdmissionPolicy '{DEVICES}'" in answer.value["message"]
        assert word in answer.value["message"]
    assert server.ask("DELETE", place).code == 200


def test_an_agent_publishes_and_takes_back_the_devices_of_its_own_node(server: Server) -> None:
    agent, own = token(server), devices_of(NODE)
    place = f"{SLICES}/{own['metadata']['name']}"
    assert server.ask("POST", SLICES, own, token=agent).code == 201
    assert server.ask("PATCH", place, {"metadata": {"labels": {"a": "b"}}}, media=MERGE, token=agent).code == 200
    assert "names no node" in server.ask("DELETE", place, token=token(server, bound=False)).value["message"]
    assert server.ask("DELETE", place, token=agent).code == 200


@pytest.mark.parametrize("kind", ["clusterroles", "clusterrolebindings"])
def test_the_operator_changes_no_rights_but_those_of_operands(server: Server, kind: str) -> None:
    rbac, operator = f"/apis/rbac.authorization.k8s.io/v1/{kind}", token(server, bound=False, name="gpu-operator")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    more = {"roleRef": reference} if kind == "clusterrolebindings" else {"rules": []}
    for method, path, body in (
        ("DELETE", f"{rbac}/cluster-admin", None),
        ("PATCH", f"{rbac}/cluster-admin", {"metadata": {"labels": {"a": "b"}}}),
        ("POST", rbac, {"metadata": {"name": "mine"}, **more}),
    ):
        media = MERGE if method == "PATCH" else "application/json"
        answer = server.ask(method, f"{path}?dryRun=All", body, media=media, token=operator)
        assert answer.code == 422
        assert f"ValidatingAdmissionPolicy '{RIGHTS}'" in answer.value["message"]
    own = {"metadata": {"name": "nvidia-gpu-driver-a100-rhel9"}, **more}
    assert server.ask("POST", rbac, own, token=operator).code == 201
    assert server.ask("DELETE", f"{rbac}/nvidia-gpu-driver-a100-rhel9", token=operator).code == 200


@pytest.mark.parametrize(
    "key", ["kgpu.dev/operation", "kgpu.dev/cordon", "kgpu.dev/mig-operation", "kgpu.dev/mig-default"]
)
def test_the_operator_alone_gives_orders_to_agents_and_says_who_holds_a_node(server: Server, key: str) -> None:
    order = {"metadata": {"annotations": {key: "{}"}}}
    operator = token(server, bound=False, name="gpu-operator")
    for node in (NODE, OTHER):
        path = f"/api/v1/nodes/{node}"
        for status in (False, True):
            assert "only the operator of kgpu" in patch(server, server.token, node, order, status=status)[1]
        assert patch(server, token(server), node, order)[0] == 422
        assert server.ask("PATCH", path, order, media=MERGE, token=operator).code == 200
        # What else is changed beside it is not meant; another order is, and to take it away is not.
        assert patch(server, server.token, node, {"metadata": {"labels": {"team": "x"}}}) == (200, "")
        other = {"metadata": {"annotations": {key: '{"version": 1}'}}}
        assert "only the operator of kgpu" in patch(server, server.token, node, other)[1]
        gone = {"metadata": {"annotations": {key: None}}}
        assert patch(server, token(server), node, gone)[0] == 422
        assert server.ask("PATCH", path, gone, media=MERGE).code == 200
    made_with_one = {"metadata": {"name": "made", **order["metadata"]}}
    assert server.ask("POST", "/api/v1/nodes?dryRun=All", made_with_one).code == 403
    assert server.ask("POST", "/api/v1/nodes?dryRun=All", {"metadata": {"name": "made"}}).code == 201


def test_nobody_else_is_meant(server: Server) -> None:
    assert patch(server, server.token, NODE, {"metadata": {"labels": {"team": "x"}}}) == (200, "")


@pytest.mark.parametrize("name", NAMES)
def test_its_expressions_have_the_right_types(server: Server, name: str) -> None:
    policy = f"{ADMISSION}/validatingadmissionpolicies/{name}"
    for _ in range(200):
        status = server.ask("GET", policy).value.get("status") or {}
        if status.get("observedGeneration"):
            assert status["typeChecking"] == {}
            return
        server.ask("GET", "/readyz")
    pytest.fail(f"no type check came: {server.log}")
