"""The metrics API over HTTP: found by discovery and as an APIService, and for those who may read it."""

from __future__ import annotations

from tests.lab.embedded.served import Server

GROUP = "/apis/metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def test_it_is_found(server: Server) -> None:
    groups = server.ask("GET", "/apis").value["groups"]
    assert "metrics.k8s.io" in {group["name"] for group in groups}
    assert server.ask("GET", GROUP).value["preferredVersion"]["groupVersion"] == "metrics.k8s.io/v1beta1"
    rows = server.ask("GET", VERSION).value["resources"]
    assert [(row["name"], row["kind"], row["namespaced"], row["verbs"]) for row in rows] == [
        ("nodes", "NodeMetrics", False, ["get", "list"]),
        ("pods", "PodMetrics", True, ["get", "list"]),
    ]
    service = server.ask("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").value
    (available,) = service["status"]["conditions"]
    assert (available["type"], available["status"]) == ("Available", "True")


def test_lists_are_empty_while_nothing_runs(server: Server) -> None:
    for path, kind in ((f"{VERSION}/pods", "PodMetricsList"), (f"{VERSION}/nodes", "NodeMetricsList")):
        found = server.ask("GET", path)
        assert (found.code, found.value["kind"], found.value["items"]) == (200, kind, [])


def test_it_cannot_be_written_or_watched(server: Server) -> None:
    path = f"{VERSION}/namespaces/default/pods"
    assert server.ask("POST", path, {"kind": "PodMetrics"}).code == 405
    assert server.ask("DELETE", path).code == 405
    assert server.ask("GET", f"{path}?watch=true").code == 405


def test_a_selector_that_is_none_is_refused(server: Server) -> None:
    assert server.ask("GET", f"{VERSION}/pods?labelSelector=%3D%3D").code == 400


def test_rights_are_those_of_the_role_view(server: Server) -> None:
    user = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
    review = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": "system:serviceaccount:default:reader",
            "resourceAttributes": {
                "group": "metrics.k8s.io", "resource": "pods", "verb": "list", "namespace": "default",
            },
        },
    }  # fmt: skip
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert server.ask("POST", reviews, review).value["status"]["allowed"] is False
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "metrics-reader"},
        "roleRef": role, "subjects": [user],
    }  # fmt: skip
    path = f"{RBAC}/namespaces/default/rolebindings"
    assert server.ask("POST", path, binding).code == 201
    try:
        assert server.ask("POST", reviews, review).value["status"]["allowed"] is True
    finally:
        server.ask("DELETE", f"{path}/metrics-reader")
