"""The chart's policy at work on the embedded API: an agent may change its own Node, of that what is kgpu's, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from charts.conftest import NAMESPACE, chart_in
from charts.test_admission import KIND, KUBERNETES, NAME, SERVED
from lab.embedded import served
from lab.embedded.served import Server

from tests.operator.own_node import GRANTED, OTHER, OWN_LABEL, REFUSED

NODE = "own-node"
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
STRATEGIC = "application/strategic-merge-patch+json"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def made(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.ask("POST", path, body)
    assert answer.code == 201, answer.body
    found: dict[str, Any] = answer.value
    return found


@pytest.fixture(scope="module")
def server(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Nodes, an agent's pod, and the policy; the agent's account has every right that RBAC knows."""
    objects = chart_in(helm, tmp_path_factory.mktemp("helm"))(words=(*SERVED, *KUBERNETES))
    with served.running(tmp_path_factory.mktemp("api")) as found:
        made(found, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        made(found, ACCOUNTS, {"metadata": {"name": "kgpu-agent"}})
        rights = {
            "metadata": {"name": "agent"},
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "ServiceAccount", "name": "kgpu-agent", "namespace": NAMESPACE}],
        }
        made(found, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", rights)
        for name in (NODE, OTHER):
            labels = {"kubernetes.io/hostname": name}
            made(found, "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        spec = {
            "nodeName": NODE, "serviceAccountName": "kgpu-agent",
            "containers": [{"name": "c", "image": "registry.invalid/none"}],
        }  # fmt: skip
        made(found, f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "agent"}, "spec": spec})
        made(found, f"{ADMISSION}/validatingadmissionpolicies", objects.one(KIND, NAME))
        made(found, f"{ADMISSION}/validatingadmissionpolicybindings", objects.one(f"{KIND}Binding", NAME))
        yield found


def token(server: Server, *, bound: bool = True) -> str:
    reference = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "agent"}} if bound else {}
    found = made(server, f"{ACCOUNTS}/kgpu-agent/token", {"spec": reference})
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


def test_nobody_else_is_meant(server: Server) -> None:
    assert patch(server, server.token, NODE, {"metadata": {"labels": {"team": "x"}}}) == (200, "")


def test_its_expressions_have_the_right_types(server: Server) -> None:
    policy = f"{ADMISSION}/validatingadmissionpolicies/{NAME}"
    for _ in range(200):
        status = server.ask("GET", policy).value.get("status") or {}
        if status.get("observedGeneration"):
            assert status["typeChecking"] == {}
            return
        server.ask("GET", "/readyz")
    pytest.fail(f"no type check came: {server.log}")
