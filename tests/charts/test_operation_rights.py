"""Who may ask for an operation on a node, let it begin, and write its record: the chart's roles and policies at work on
the embedded API.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from kgpu.formats.crd.definitions import crds
from tests.charts.conftest import NAMESPACE, chart_in
from tests.charts.test_admission import APPROVAL, CLAIMS, KIND, KUBERNETES, NAMES, RECORD, SERVED
from tests.charts.test_admission_enforced import ACCOUNTS, ADMISSION, MERGE, made
from tests.lab.embedded import served
from tests.lab.embedded.served import Answer, Server

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
OPERATIONS: Final = "/apis/kgpu.dev/v1alpha1/nodeoperations"
USUAL: Final = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
REBOOT: Final = {"nodeName": "n1", "type": "Reboot"}
ASKED: Final = {**REBOOT, "approved": False}
MAINTENANCE: Final = {"nodeName": "n1", "type": "Maintenance"}
FORCED: Final = {**MAINTENANCE, "drain": {"onTimeout": "Force"}}
RESET: Final = {"nodeName": "n1", "type": "GpuReset", "gpus": ["GPU-1"]}
# Account -> its ClusterRole: the chart's, or one of this test's.
ROLES: Final = {
    "gpu-operator": "kgpu:operator",
    "kgpu-agent": "kgpu:agent",
    "jo": "kgpu-node-operations-requester",
    "ann": "kgpu-node-operations",
    "usual": "usual",
    "of-one": "named",
}


@pytest.fixture(scope="module")
def server(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The policies, and accounts with the chart's roles."""
    objects = chart_in(helm, tmp_path_factory.mktemp("helm"))(CLAIMS, words=(*SERVED, *KUBERNETES))
    with served.running(tmp_path_factory.mktemp("api")) as found:
        made(found, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for crd in crds():
            made(found, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        rules = [{"apiGroups": ["kgpu.dev"], "resources": ["nodeoperations", "nodeoperations/status"], "verbs": USUAL}]
        made(found, f"{RBAC}/clusterroles", {"metadata": {"name": "usual"}, "rules": rules})
        named = {
            "apiGroups": ["kgpu.dev"],
            "resources": ["nodeoperations"],
            "verbs": ["approve"],
            "resourceNames": ["waiting"],
        }
        made(found, f"{RBAC}/clusterroles", {"metadata": {"name": "named"}, "rules": [*rules, named]})
        for account, role in ROLES.items():
            made(found, ACCOUNTS, {"metadata": {"name": account}})
            if role.startswith("kgpu"):
                made(found, f"{RBAC}/clusterroles", objects.one("ClusterRole", role))
            binding = {
                "metadata": {"name": account},
                "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
            }
            made(found, f"{RBAC}/clusterrolebindings", binding)
        for name in NAMES:
            made(found, f"{ADMISSION}/validatingadmissionpolicies", objects.one(KIND, name))
            made(found, f"{ADMISSION}/validatingadmissionpolicybindings", objects.one(f"{KIND}Binding", name))
        yield found


def token(server: Server, account: str) -> str:
    """The token of an account, or of the cluster's admin."""
    if account == "admin":
        return server.token
    return str(made(server, f"{ACCOUNTS}/{account}/token", {"spec": {}})["status"]["token"])


def create(server: Server, account: str, spec: dict[str, Any], name: str = "tried", *, dry: bool = True) -> Answer:
    body = {"apiVersion": "kgpu.dev/v1alpha1", "kind": "NodeOperation", "metadata": {"name": name}, "spec": spec}
    return server.ask("POST", f"{OPERATIONS}{'?dryRun=All' if dry else ''}", body, token=token(server, account))


def patch(server: Server, account: str, name: str, change: dict[str, Any], *, status: bool = False) -> Answer:
    path = f"{OPERATIONS}/{name}{'/status' if status else ''}?dryRun=All"
    return server.ask("PATCH", path, change, media=MERGE, token=token(server, account))


@pytest.fixture
def waiting(server: Server) -> Iterator[str]:
    """The name of a reboot that waits for approval."""
    assert create(server, "jo", ASKED, "waiting", dry=False).code == 201
    yield "waiting"
    assert server.ask("DELETE", f"{OPERATIONS}/waiting").code == 200


@pytest.mark.parametrize("account", ["jo", "usual", "gpu-operator"])
@pytest.mark.parametrize("spec", [REBOOT, RESET, FORCED, {**REBOOT, "approved": True}])
def test_to_let_a_node_reboot_takes_the_right_to_approve(server: Server, account: str, spec: dict[str, Any]) -> None:
    answer = create(server, account, spec)
    assert answer.code == 403
    past = " past PodDisruptionBudgets" if spec is FORCED else ""
    said = f"to let a {spec['type']}{past} begin needs the verb approve on nodeoperations.kgpu.dev"
    assert f"ValidatingAdmissionPolicy '{APPROVAL}'" in answer.value["message"]
    assert said in answer.value["message"]
    assert "--ask" in answer.value["message"]


@pytest.mark.parametrize("account", ["jo", "usual", "gpu-operator", "ann", "admin"])
@pytest.mark.parametrize("spec", [ASKED, {**RESET, "approved": False}, {**FORCED, "approved": False}, MAINTENANCE])
def test_to_ask_takes_none_nor_does_a_maintenance_within_budgets(
    server: Server, account: str, spec: dict[str, Any]
) -> None:
    assert create(server, account, spec).code == 201


@pytest.mark.parametrize("account", ["ann", "admin"])
@pytest.mark.parametrize("spec", [REBOOT, RESET, FORCED])
def test_who_has_it_lets_everything_begin(server: Server, account: str, spec: dict[str, Any]) -> None:
    assert create(server, account, spec).code == 201


def test_an_agent_asks_for_nothing(server: Server) -> None:
    assert create(server, "kgpu-agent", ASKED).code == 403


@pytest.mark.parametrize(
    ("account", "code"),
    [
        ("jo", 403),
        ("usual", 403),
        ("gpu-operator", 403),
        ("kgpu-agent", 403),
        ("ann", 200),
        ("admin", 200),
        ("of-one", 200),
    ],
)
def test_who_may_approve_what_waits(server: Server, waiting: str, account: str, code: int) -> None:
    answer = patch(server, account, waiting, {"spec": {"approved": True}})
    assert answer.code == code
    if account in {"usual", "gpu-operator"}:  # the others may not change it at all
        assert f"ValidatingAdmissionPolicy '{APPROVAL}'" in answer.value["message"]


def test_the_right_to_approve_may_be_for_one_operation(server: Server) -> None:
    assert create(server, "of-one", REBOOT).code == 403
    assert create(server, "jo", ASKED, "other", dry=False).code == 201
    assert patch(server, "of-one", "other", {"spec": {"approved": True}}).code == 403
    assert server.ask("DELETE", f"{OPERATIONS}/other").code == 200


def test_another_word_about_it_needs_no_approval(server: Server, waiting: str) -> None:
    assert patch(server, "usual", waiting, {"spec": {"cancel": True}}).code == 200
    assert patch(server, "usual", waiting, {"metadata": {"labels": {"a": "b"}}}).code == 200
    assert create(server, "ann", REBOOT, "begun", dry=False).code == 201
    assert patch(server, "usual", "begun", {"spec": {"cancel": True}}).code == 200
    assert server.ask("DELETE", f"{OPERATIONS}/begun", token=token(server, "usual")).code == 200


@pytest.mark.parametrize(
    ("account", "code"),
    [("jo", 403), ("usual", 403), ("kgpu-agent", 403), ("ann", 403), ("gpu-operator", 200), ("admin", 200)],
)
def test_the_record_is_the_operators(server: Server, waiting: str, account: str, code: int) -> None:
    answer = patch(server, account, waiting, {"status": {"phase": "Complete", "result": "Succeeded"}}, status=True)
    assert answer.code == code
    if account == "usual":
        assert f"ValidatingAdmissionPolicy '{RECORD}'" in answer.value["message"]
        assert "set spec.cancel (`kgpu operations cancel`)" in answer.value["message"]


@pytest.mark.parametrize(
    ("account", "verb", "granted"),
    [
        ("jo", "approve", False), ("ann", "approve", True), ("ann", "record", False), ("gpu-operator", "record", True),
        ("gpu-operator", "approve", False), ("usual", "approve", False),
    ],
)  # fmt: skip
def test_kubectl_can_ask_whether_one_may(server: Server, account: str, verb: str, granted: bool) -> None:
    wanted = {"group": "kgpu.dev", "resource": "nodeoperations", "verb": verb}
    review = {"spec": {"resourceAttributes": wanted}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = server.ask("POST", path, review, token=token(server, account))
    assert answer.value["status"]["allowed"] is granted


def test_only_a_maintenance_lasts(server: Server) -> None:
    answer = create(server, "admin", {**REBOOT, "durationSeconds": 60})
    assert answer.code == 422
    assert "durationSeconds is for a Maintenance alone" in answer.value["message"]
    assert create(server, "admin", {**MAINTENANCE, "durationSeconds": 60}).code == 201
