"""What comes over the wire: codes, watches that begin too far back, pages, what a fresh cluster has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.lab.embedded.kinds import Kinds
from tests.lab.embedded.served import Server

MERGE = "application/merge-patch+json"
MAPS = "/api/v1/namespaces/default/configmaps"


def lines_of(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def test_a_watch_from_too_far_back_is_told_in_its_stream(server: Server) -> None:
    found = server.ask("GET", f"{MAPS}?watch=1&resourceVersion=1&timeoutSeconds=5")
    assert found.code == 200
    (line,) = lines_of(found.body)
    assert line["type"] == "ERROR"
    status = line["object"]
    assert (status["code"], status["reason"], status["status"]) == (410, "Expired", "Failure")
    assert status["message"].startswith("too old resource version: 1 (")


def test_a_list_from_too_far_back_is_410(server: Server) -> None:
    found = server.ask("GET", f"{MAPS}?resourceVersion=1&resourceVersionMatch=Exact")
    assert (found.code, found.value["reason"]) == (410, "Expired")
    assert found.value["message"] == "The resourceVersion for the provided list is too old."


def test_pages_go_on_where_they_stopped(server: Server) -> None:
    for name in ("page-a", "page-b", "page-c"):
        assert server.ask("POST", MAPS, config_map(name, labels={"page": "x"})).code == 201
    seen, token = [], ""
    while True:
        page = server.ask("GET", f"{MAPS}?labelSelector=page%3Dx&limit=1&continue={token}").value
        seen += [one["metadata"]["name"] for one in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert seen == ["page-a", "page-b", "page-c"]
    gone = server.ask("DELETE", f"{MAPS}?labelSelector=page%3Dx")
    assert (gone.code, [one["metadata"]["name"] for one in gone.value["items"]]) == (200, seen)
    assert server.ask("GET", f"{MAPS}?labelSelector=page%3Dx").value["items"] == []


CREATED_BY_PUT = [
    ("coordination.k8s.io", "leases", {"spec": {"holderIdentity": "x"}}),
    ("", "events", {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "x"}, "type": "Normal"}),
    ("", "services", {"spec": {"clusterIP": "None", "selector": {"a": "b"}}}),
    ("", "limitranges", {"spec": {"limits": []}}),
    ("rbac.authorization.k8s.io", "roles", {"rules": []}),
]
NOT_BY_PUT = [("", "configmaps", {}), ("", "secrets", {}), ("", "serviceaccounts", {})]


@pytest.mark.parametrize(("group", "plural", "rest"), [*CREATED_BY_PUT, *NOT_BY_PUT])
def test_put_makes_what_the_real_server_lets_it_make(
    server: Server, group: str, plural: str, rest: dict[str, Any]
) -> None:
    kind = Kinds().need(group, plural)
    base = f"/apis/{kind.api_version}" if group else "/api/v1"
    path = f"{base}/namespaces/default/{plural}/by-put"
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "by-put"}, **rest}
    made = server.ask("PUT", path, body)
    if (group, plural, rest) in NOT_BY_PUT:
        assert made.code == 404
        return
    assert made.code == 201
    body["metadata"] = {"name": "by-put", "resourceVersion": made.value["metadata"]["resourceVersion"]}
    assert server.ask("PUT", path, body).code == 200


def test_an_empty_list_of_owners_forgets_them(server: Server) -> None:
    made = server.ask("POST", MAPS, config_map("owners") | {"data": {"a": "1"}})
    assert made.value["metadata"]["managedFields"]
    put = server.ask("PUT", f"{MAPS}/owners", config_map("owners", managedFields=[]) | {"data": {"a": "2"}})
    assert "managedFields" not in put.value["metadata"]


def test_a_pod_with_gates_says_that_it_waits(server: Server) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"},
        "spec": {"schedulingGates": [{"name": "example.com/a"}], "containers": [{"name": "c", "image": "x"}]},
    }  # fmt: skip
    made = server.ask("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)
    assert made.code == 201
    (condition,) = made.value["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    assert condition["message"] == "Scheduling is blocked due to non-empty scheduling gates"
    assert server.ask("GET", "/api/v1/namespaces/default/pods/gated").code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "media"),
    [
        ("POST", MAPS, config_map("dry"), ""),
        ("PUT", f"{MAPS}/kube-root-ca.crt", config_map("kube-root-ca.crt"), ""),
        ("PATCH", f"{MAPS}/kube-root-ca.crt", {"data": None}, MERGE),
        ("DELETE", f"{MAPS}/kube-root-ca.crt", None, ""),
        ("DELETE", MAPS, None, ""),
        ("DELETE", "/api/v1/namespaces/kube-node-lease", None, ""),
    ],
)
def test_a_dry_run_changes_nothing(server: Server, method: str, path: str, body: Any, media: str) -> None:
    before = server.ask("GET", f"{MAPS}/kube-root-ca.crt").value
    assert server.ask(method, f"{path}?dryRun=All", body, media=media or "application/json").code in (200, 201)
    assert server.ask("GET", f"{MAPS}/kube-root-ca.crt").value == before
    assert server.ask("GET", f"{MAPS}/dry").code == 404
    assert server.ask("GET", "/api/v1/namespaces/kube-node-lease").value["status"]["phase"] == "Active"


def test_a_namespace_ends_through_finalize(server: Server) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ending", "finalizers": ["example.com/x"]}}
    assert server.ask("POST", "/api/v1/namespaces", space).code == 201
    assert server.ask("DELETE", "/api/v1/namespaces/ending").value["status"]["phase"] == "Terminating"
    refused = server.ask("POST", "/api/v1/namespaces/ending/configmaps", config_map("late"))
    assert refused.code == 403
    assert "because it is being terminated" in refused.value["message"]
    held = server.ask("GET", "/api/v1/namespaces/ending").value
    held["spec"]["finalizers"] = []
    held["metadata"].pop("resourceVersion")
    assert server.ask("PUT", "/api/v1/namespaces/ending/finalize", held).code == 200
    assert server.ask("PATCH", "/api/v1/namespaces/ending", {"metadata": {"finalizers": None}}, media=MERGE).code == 200
    assert server.ask("GET", "/api/v1/namespaces/ending").code == 404


def test_every_namespace_has_the_authority_that_pods_trust(server: Server) -> None:
    authority = (server.folder / "pki" / "ca.crt").read_text()
    for space in ("default", "kube-system"):
        found = server.ask("GET", f"/api/v1/namespaces/{space}/configmaps/kube-root-ca.crt").value
        assert found["data"] == {"ca.crt": authority}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/namespaces", "kube-public"),
        ("/api/v1/namespaces/default/services", "kubernetes"),
        ("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "kubernetes"),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", "system-node-critical"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "cluster-admin"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "system:controller:job-controller"),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles", "extension-apiserver-authentication-reader"),
        ("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "catch-all"),
        ("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", "exempt"),
        ("/apis/apiregistration.k8s.io/v1/apiservices", "v1."),
        ("/apis/networking.k8s.io/v1/servicecidrs", "kubernetes"),
        ("/api/v1/namespaces/kube-system/serviceaccounts", "default"),
    ],
)  # fmt: skip
def test_a_fresh_cluster_has(server: Server, path: str, name: str) -> None:
    assert server.ask("GET", f"{path}/{name}").code == 200


STREAMS = ["attach"]


@pytest.mark.parametrize("stream", STREAMS)
def test_what_only_real_nodes_can_do_is_refused_plainly(server: Server, stream: str) -> None:
    pods = "/api/v1/namespaces/default/pods"
    name = f"streamed-{STREAMS.index(stream)}"
    spec = {"containers": [{"name": "c", "image": "x"}], "nodeSelector": {"no": "where"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    assert server.ask("POST", pods, pod).code == 201
    waiting = server.ask("POST", f"{pods}/{name}/{stream}")
    assert (waiting.code, waiting.value["message"]) == (400, f"pod {name} does not have a host assigned")
    target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"name": "n1"}}
    assert server.ask("POST", f"{pods}/{name}/binding", target).code == 201
    refused = server.ask("POST", f"{pods}/{name}/{stream}")
    assert refused.code == 501
    assert "use the real lab for that (kgpu lab up --real)" in refused.value["message"]
    added = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x"}]}}
    debug = server.ask("PATCH", f"{pods}/{name}/ephemeralcontainers", added, media=MERGE)
    assert (debug.code, "use the real lab" in debug.value["message"]) == (501, True)
    server.ask("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")


def test_logs_of_a_pod_whose_node_does_not_answer_say_so(server: Server) -> None:
    pods = "/api/v1/namespaces/default/pods"
    address = {"type": "InternalIP", "address": "127.0.0.1"}
    status = {"addresses": [address], "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "unheard"}, "status": status}
    assert server.ask("POST", "/api/v1/nodes", node).code == 201
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "logged"},
        "spec": {"nodeName": "unheard", "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]},
    }  # fmt: skip
    assert server.ask("POST", pods, pod).code == 201
    which = server.ask("GET", f"{pods}/logged/log")
    assert (which.code, which.value["message"]) == (
        400, "a container name must be specified for pod logged, choose one of: [a b]",
    )  # fmt: skip
    silent = server.ask("GET", f"{pods}/logged/log?container=a")
    assert silent.code == 500
    assert silent.value["message"].startswith(
        'Internal error occurred: Get "https://127.0.0.1:1/containerLogs/default/'
    )
    server.ask("DELETE", f"{pods}/logged?gracePeriodSeconds=0")
    server.ask("DELETE", "/api/v1/nodes/unheard")


UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
}  # fmt: skip


def test_a_command_in_a_pod_is_refused_where_no_kubelet_runs_it(server: Server) -> None:
    pods = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "run-in"}, "spec": spec}
    waiting = pod | {"metadata": {"name": "run-waiting"}, "spec": spec | {"nodeSelector": {"no": "where"}}}
    assert server.ask("POST", pods, pod | {"spec": spec | {"nodeName": "run-node"}}).code == 201
    assert server.ask("POST", pods, waiting).code == 201
    command = "exec?command=ls&stdout=true"

    def asked(name: str, query: str, **headers: str) -> tuple[int, str]:
        found = server.ask("GET", f"{pods}/{name}/{query}", **headers)
        return found.code, found.value["message"]

    assert asked("run-in", command) == (
        400, "a container name must be specified for pod run-in, choose one of: [a b]",
    )  # fmt: skip
    assert asked("run-in", f"{command}&container=c") == (400, "container c is not valid for pod run-in")
    assert asked("run-waiting", f"{command}&container=a") == (400, "pod run-waiting does not have a host assigned")
    assert asked("run-in", f"{command}&container=a") == (404, 'nodes "run-node" not found')
    address = {"type": "InternalIP", "address": "127.0.0.1"}
    status = {"addresses": [address], "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "run-node"}, "status": status}
    assert server.ask("POST", "/api/v1/nodes", node).code == 201
    assert asked("run-in", f"{command}&container=a") == (400, "Upgrade request required")
    assert asked("run-in", f"{command}&container=a", **UPGRADE) == (
        500, "Internal error occurred: error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused",
    )  # fmt: skip
    # The connection that was not upgraded is HTTP as before, and so are others.
    assert server.ask("GET", f"{pods}/run-in").code == 200
    for name in ("run-in", "run-waiting"):
        server.ask("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")
    server.ask("DELETE", "/api/v1/nodes/run-node")


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TAKEN = "application/json, application/yaml"


@pytest.mark.parametrize(
    ("accept", "code", "message"),
    [
        (f"{TABLE},application/json", 201, ""),
        ("application/json;as=Else;v=v1;g=meta.k8s.io", 406, f"only the following media types are accepted: {TAKEN}"),
        ("text/html", 406, f"406: Not Acceptable\n\nAvailable representations: {TAKEN}"),
    ],
)
def test_what_is_only_asked_has_no_table(server: Server, accept: str, code: int, message: str) -> None:
    review = {"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}
    found = server.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, Accept=accept)
    assert (found.code, found.value.get("message", "")) == (code, message)
    assert found.value["kind"] == ("Status" if message else "SelfSubjectAccessReview")
    assert server.ask("POST", f"{MAPS}?dryRun=All", config_map("table"), Accept=TABLE).value["kind"] == "Table"


def test_large_bodies_are_taken_as_small_ones_are(server: Server) -> None:
    body = config_map("large") | {"data": {"x": "y" * 200_000}, "bogus": 1}
    strict = server.ask("POST", f"{MAPS}?fieldValidation=Strict", body)
    assert (strict.code, 'unknown field "bogus"' in strict.value["message"]) == (400, True)
    made = server.ask("POST", MAPS, body)
    assert (made.code, made.headers["warning"]) == (201, '299 - "unknown field \\"bogus\\""')
    (owner,) = made.value["metadata"]["managedFields"]
    assert owner["fieldsV1"] == {"f:data": {".": {}, "f:x": {}}}
    changed = server.ask("PUT", f"{MAPS}/large", body | {"data": {"x": "z" * 200_000}})
    assert (changed.code, changed.value["data"]["x"][0]) == (200, "z")
    assert server.ask("PUT", f"{MAPS}/large-too", body).code == 404
    assert server.ask("DELETE", f"{MAPS}/large").code == 200


def test_what_no_storage_takes_is_refused_in_etcd_s_words(server: Server) -> None:
    containers = [{"name": f"c{number}", "image": "a"} for number in range(40_000)]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "huge"}, "spec": {"containers": containers}}
    found = server.ask("POST", "/api/v1/namespaces/default/pods", body)
    assert (found.code, found.value["message"]) == (500, "etcdserver: request is too large")
    assert found.value.keys() == {"kind", "apiVersion", "metadata", "status", "message", "code"}


def test_an_older_eviction_is_an_eviction(server: Server) -> None:
    path = "/api/v1/namespaces/default/pods/none/eviction"
    for version, code in (("policy/v1beta1", 404), ("policy/v1", 404), ("policy/v1alpha1", 400), ("v1", 400)):
        body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": "none", "namespace": "default"}}
        assert server.ask("POST", path, body).code == code, version
