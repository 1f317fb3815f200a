"""The chart's policy at work on the embedded API: who lets an operation begin, also one whose rollout has stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.formats.crd.definitions import crds
from tests.charts.conftest import NAMESPACE, chart_in
from tests.charts.test_admission import APPROVAL, KIND, KUBERNETES, SERVED
from tests.lab.embedded import served
from tests.lab.embedded.served import Server
from tests.operations.sim_drivers import wanted
from tests.operations.sim_mig import spec as cut

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OPERATIONS = "/apis/kgpu.dev/v1alpha1/nodeoperations"
MERGE = "application/merge-patch+json"
USUAL = ["get", "list", "watch", "create", "update", "patch", "delete"]
VERBS = {"requester": USUAL, "approver": [*USUAL, "approve"], "operator": [*USUAL, "upgrade", "cut"]}
EVEN_SO = {"evenIfStopped": True}
FORCED = {"drain": {"onTimeout": "Force"}}
CUT = {**cut(), "driver": None}


def made(server: Server, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    answer = server.ask("POST", path, body, token=token or server.token)
    assert answer.code == 201, answer.body
    found: dict[str, Any] = answer.value
    return found


@pytest.fixture(scope="module")
def server(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The kind NodeOperation, the policy, and accounts with the verbs above."""
    objects = chart_in(helm, tmp_path_factory.mktemp("helm"))(words=(*SERVED, *KUBERNETES))
    with served.running(tmp_path_factory.mktemp("api")) as found:
        made(found, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name, verbs in VERBS.items():
            made(found, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": name}})
            rules = [{"apiGroups": ["kgpu.dev"], "resources": ["nodeoperations"], "verbs": verbs}]
            made(found, f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
            role = {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
            subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
            binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
            made(found, f"{RBAC}/clusterrolebindings", binding)
        for crd in crds():
            if crd["spec"]["names"]["kind"] == "NodeOperation":
                made(found, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        made(found, f"{ADMISSION}/validatingadmissionpolicies", objects.one(KIND, APPROVAL))
        made(found, f"{ADMISSION}/validatingadmissionpolicybindings", objects.one(f"{KIND}Binding", APPROVAL))
        yield found


@pytest.fixture(scope="module")
def tokens(server: Server) -> dict[str, str]:
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    return {name: str(made(server, f"{accounts}/{name}/token", {"spec": {}})["status"]["token"]) for name in VERBS}


def operation(name: str = "m", **spec: Any) -> dict[str, Any]:
    usual = {"nodeName": "n1", "type": "DriverUpgrade", "driver": wanted(), "approved": False}
    whole = {key: value for key, value in {**usual, **spec}.items() if value is not None}
    head = {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation"}
    return {**head, "metadata": {"name": name}, "spec": whole}


@pytest.mark.parametrize(
    ("spec", "who"),
    [
        ({}, {"requester", "approver", "operator"}),
        ({"approved": True}, {"approver", "operator"}),
        ({"approved": None}, {"approver", "operator"}),
        (EVEN_SO, {"approver", "operator"}),
        ({**EVEN_SO, "approved": True}, {"approver", "operator"}),
        ({**EVEN_SO, **FORCED}, {"approver"}),
        ({"evenIfStopped": False}, {"requester", "approver", "operator"}),
        ({**EVEN_SO, "type": "Reboot", "driver": None}, {"approver"}),
        ({**EVEN_SO, "type": "Maintenance", "driver": None}, {"requester", "approver", "operator"}),
        ({**EVEN_SO, **FORCED, "type": "Maintenance", "driver": None}, {"approver"}),
        ({**CUT, "approved": True}, {"approver", "operator"}),
        ({**CUT, **FORCED, "approved": True}, {"approver", "operator"}),
        (CUT, {"requester", "approver", "operator"}),
    ],
    ids=str,
)
def test_who_may_make_it(server: Server, tokens: dict[str, str], spec: dict[str, Any], who: set[str]) -> None:
    answers = {
        name: server.ask("POST", f"{OPERATIONS}?dryRun=All", operation(**spec), token=token)
        for name, token in tokens.items()
    }
    assert {name for name, answer in answers.items() if answer.code == 201} == who
    for name in VERBS.keys() - who:
        assert answers[name].code == 403
        assert "needs the verb approve on nodeoperations.kgpu.dev" in answers[name].value["message"]


def test_who_lets_one_begin_whose_rollout_has_stopped(server: Server, tokens: dict[str, str]) -> None:
    made(server, OPERATIONS, operation("stopped"), tokens["requester"])
    path = f"{OPERATIONS}/stopped"

    def patch(who: str, **spec: Any) -> int:
        return server.ask("PATCH", path, {"spec": spec}, media=MERGE, token=tokens[who]).code

    assert patch("requester", evenIfStopped=True) == 403
    assert patch("requester", approved=True) == 403
    assert patch("requester", evenIfStopped=True, approved=True) == 403
    assert patch("approver", evenIfStopped=True) == 200
    # Who may not approve may still change what approves nothing, and cancel.
    assert patch("requester", evenIfStopped=True) == 200
    assert patch("requester", approved=True) == 403, "the one word is not the other"
    assert patch("approver", approved=True) == 200
    assert patch("requester", cancel=True) == 200
