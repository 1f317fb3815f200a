"""What can't be answered is refused with the real server's code and words, and leaves no trace in the log.

The codes and messages are those that kube-apiserver 1.35 gave to the same requests.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.lab.embedded.served import Server

MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
BEGUN = "the object provided is unrecognized (must be of type ConfigMap): "
PARSE = f"{BEGUN}couldn't get version/kind; json parse error: "
HEAD = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
GONE = "the server could not find the requested resource"
METHOD = "the server does not allow this method on the requested resource"
FORMATS = "accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


ROWS: list[tuple[str, str, Any, str, int, str]] = [
    # method, path, body, media, code, message
    ("POST", MAPS, "{bad", "", 400, f"{PARSE}invalid character 'b' looking for beginning of object key string"),
    ("POST", MAPS, "[]", "", 400, f"{PARSE}json: cannot unmarshal array into Go value of type {HEAD} (5b5d)"),
    ("POST", MAPS, b"\xff\xfe{}", "", 400, f"{PARSE}invalid character "),
    ("POST", MAPS, '{"metadata":{"name":"x"},"a":' + "[" * 100_000 + "]" * 100_000 + "}", "", 400, f"{PARSE}exceeded"),
    ("POST", MAPS, '{"a":' * 100_000 + "1" + "}" * 100_000, "", 400, f"{PARSE}exceeded max depth"),
    ("POST", MAPS, "[" * 100_000, "", 400, PARSE),
    ("POST", MAPS, "a: [", "application/yaml", 400, f"{BEGUN}yaml: line "),
    ("POST", MAPS, "[" * 5000, "application/yaml", 400, BEGUN),
    ("POST", MAPS, b"\x0a\xff\xff\xff", "application/vnd.kubernetes.protobuf", 400, BEGUN),
    ("POST", MAPS, "x", "text/plain", 415, f"the body of the request was in an unknown format - {FORMATS}"),
    ("POST", MAPS, "x", ";;;", 415, f"the body of the request was in an unknown format - {FORMATS}"),
    ("POST", MAPS, b" " * (3 * 1024 * 1024 + 1), "", 413, "Request entity too large: limit is 3145728"),
    ("POST", MAPS, config_map("big") | {"data": {"x": "a" * (2 << 20)}}, "", 422,
     'ConfigMap "big" is invalid: []: Too long: may not be more than 1048576 bytes'),
    ("POST", MAPS, config_map("x") | {"kind": "Pod"}, "", 400, 'Pod in version "v1" cannot be handled as a ConfigMap'),
    ("POST", MAPS, config_map("x", labels={"a": 5}), "", 400,
     'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number'),
    ("POST", MAPS, config_map("x", resourceVersion="5"), "", 500, "resourceVersion should not be set on objects to be"),
    ("POST", MAPS, config_map("x", namespace="other"), "", 400, "the namespace of the provided object does not match"),
    ("POST", f"{MAPS}?dryRun=server", config_map("x"), "", 422, 'CreateOptions.meta.k8s.io "" is invalid: dryRun: '),
    ("POST", f"{MAPS}?fieldManager={'m' * 200}", config_map("x"), "", 422, "CreateOptions.meta.k8s.io"),
    ("POST", "/api/v1/namespaces/none/configmaps", config_map("x"), "", 404, 'namespaces "none" not found'),
    ("PUT", f"{MAPS}/none", config_map("none"), "", 404, 'configmaps "none" not found'),
    ("PUT", f"{MAPS}/none", config_map("other"), "", 404, 'configmaps "none" not found'),
    ("PATCH", f"{MAPS}/none", "{bad", MERGE, 404, 'configmaps "none" not found'),
    ("PATCH", f"{MAPS}/kube-root-ca.crt", "{bad", MERGE, 400, "error decoding patch: invalid character 'b'"),
    ("PATCH", f"{MAPS}/kube-root-ca.crt", "[]", MERGE, 400, "error decoding patch: json: cannot unmarshal array"),
    ("PATCH", f"{MAPS}/kube-root-ca.crt", {}, JSON_PATCH, 400, "error decoding patch: json: cannot unmarshal object"),
    ("PATCH", f"{MAPS}/kube-root-ca.crt", {}, "text/plain", 415, "415: Unsupported Media Type"),
    ("PATCH", f"{MAPS}/kube-root-ca.crt", {"metadata": {"uid": "x"}}, MERGE, 422,
     'ConfigMap "kube-root-ca.crt" is invalid: metadata.uid: Invalid value: "x": field is immutable'),
    ("PATCH", f"{MAPS}/x?fieldManager=m", "a: [", APPLY, 400, "error decoding YAML: error converting YAML to JSON: yaml"),
    ("PATCH", f"{MAPS}/x?fieldManager=m", "[]", APPLY, 400,
     "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value"),
    ("PATCH", f"{MAPS}/x", {}, APPLY, 422, 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is'),
    ("DELETE", f"{MAPS}/kube-root-ca.crt", {"kind": "Pod", "apiVersion": "v1"}, "", 400,
     'no kind "Pod" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"'),
    ("DELETE", f"{MAPS}/kube-root-ca.crt", {"gracePeriodSeconds": "x"}, "", 400,
     "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64"),
    ("DELETE", f"{MAPS}/kube-root-ca.crt", {"propagationPolicy": "No"}, "", 422, "DeleteOptions.meta.k8s.io"),
    ("DELETE", f"{MAPS}/kube-root-ca.crt", {"preconditions": {"uid": "x"}}, "", 409,
     'Operation cannot be fulfilled on ConfigMap "kube-root-ca.crt": the UID in the precondition (x) does not match'),
    ("DELETE", "/api/v1/namespaces/default", None, "", 403, 'namespaces "default" is forbidden: this namespace may not'),
    ("GET", f"{MAPS}?limit=x", None, "", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ("GET", f"{MAPS}?resourceVersion=x", None, "", 400, "invalid resource version: resourceVersion: Invalid value"),
    ("GET", f"{MAPS}?continue=!!!", None, "", 400,
     "invalid continue token: continue key is not valid: illegal base64 data at input byte 0"),
    ("GET", f"{MAPS}?continue=abc", None, "", 400,
     "invalid continue token: continue key is not valid: invalid character 'i' looking for beginning of value"),
    ("GET", f"{MAPS}?labelSelector=a+in+(b", None, "", 400, "unable to parse requirement: "),
    ("GET", f"{MAPS}?fieldSelector=spec.x%3Da", None, "", 400, '"spec.x" is not a known field selector: only'),
    ("GET", f"{MAPS}?watch=1&timeoutSeconds=x", None, "", 400, "strconv.ParseInt"),
    ("GET", f"{MAPS}?watch=1&resourceVersionMatch=Exact", None, "", 422, 'ListOptions.meta.k8s.io "" is invalid: ['),
    ("GET", f"{MAPS}/..", None, "", 400, 'Name parameter invalid: "..": may not be \'..\''),
    ("GET", f"{MAPS}/%2e%2e", None, "", 400, 'Name parameter invalid: "..": may not be \'..\''),
    ("GET", f"{MAPS}/a/b/c/d", None, "", 404, GONE),
    ("GET", "/api/v1/nothings", None, "", 404, GONE),
    ("GET", "/apis/apps/v9", None, "", 404, GONE),
    ("GET", "/apis/apps/v9/deployments", None, "", 404, GONE),
    ("PUT", MAPS, {}, "", 405, METHOD),
    ("POST", f"{MAPS}/a", {}, "", 405, METHOD),
    ("GET", "/api/v1/namespaces/default/serviceaccounts/default/token", None, "", 405, METHOD),
    ("GET", "/api/v1/namespaces/default/pods/none/log", None, "", 404, 'pods "none" not found'),
    ("GET", "/api/v1/namespaces/default/pods/none/exec?command=x", None, "", 404, 'pods "none" not found'),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "media", "code", "message"), ROWS)
def test_is_refused_in_the_real_words(  # noqa: PLR0917 - the columns of a row
    server: Server, method: str, path: str, body: Any, media: str, code: int, message: str
) -> None:
    found = server.ask(method, path, body, media=media or "application/json")
    status = found.value
    assert (found.code, status["code"], status["kind"], status["status"]) == (code, code, "Status", "Failure")
    assert status["message"].startswith(message)


@pytest.mark.parametrize(
    "path", ["/nothing", "/../../etc/passwd", "/apis/none", "/apis/none/v1", "/apis/none/v1/pods", "/livez/nope"]
)
def test_paths_of_no_group_are_plain_text(server: Server, path: str) -> None:
    found = server.ask("GET", path)
    assert (found.code, found.body) == (404, b"404 page not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_what_is_written_to_no_group_is_not_found_either(server: Server, method: str) -> None:
    found = server.ask(method, "/apis/none/v1/namespaces/default/things/one", {})
    assert (found.code, found.body) == (404, b"404 page not found\n")
    assert server.ask(method, "/apis", {}).code == 405


def test_errors_are_yaml_for_who_asks_for_yaml(server: Server) -> None:
    found = server.ask("GET", f"{MAPS}/none", accept="application/yaml")
    assert (found.code, found.headers["content-type"]) == (404, "application/yaml")
    assert found.body.startswith(b"apiVersion: v1\ncode: 404\n")


def test_unknown_fields_are_told_also_when_the_object_is_refused(server: Server) -> None:
    found = server.ask("POST", MAPS, config_map("kube-root-ca.crt") | {"bogus": 1})
    assert found.code == 409
    assert found.headers["warning"] == '299 - "unknown field \\"bogus\\""'


@pytest.mark.parametrize(
    ("token", "path", "code"),
    [
        ("", "/version", 200), ("", "/healthz", 200), ("", "/readyz?verbose", 200), ("", MAPS, 403),
        ("", "/metrics", 403), ("", "/apis", 403), ("wrong", MAPS, 401), ("wrong", "/healthz", 401),
    ],
)  # fmt: skip
def test_who_asks_counts(server: Server, token: str, path: str, code: int) -> None:
    assert server.ask("GET", path, token=token).code == code


def test_words_for_who_may_not(server: Server) -> None:
    found = server.ask("GET", f"{MAPS}/a", Impersonate_User="joe").value
    assert found["message"] == (
        'configmaps "a" is forbidden: User "joe" cannot get resource "configmaps" in API group "" in the namespace '
        '"default"'
    )
    found = server.ask("GET", "/apis/apps/v1/deployments", Impersonate_User="joe").value
    assert found["message"] == (
        'deployments.apps is forbidden: User "joe" cannot list resource "deployments" in API group "apps" at the '
        "cluster scope"
    )
    found = server.ask("GET", "/metrics", Impersonate_User="joe").value
    assert found["message"] == 'forbidden: User "joe" cannot get path "/metrics"'
    found = server.ask("GET", MAPS, Impersonate_Group="x")
    assert (found.code, found.value["message"]) == (400, "requested [{Group  x    }] without impersonating a user")


def _raw(server: Server, data: bytes) -> bytes:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain, server.context.wrap_socket(
        plain, server_hostname=host
    ) as wire:  # fmt: skip
        try:
            wire.sendall(data)
            return wire.recv(1000)
        except (ConnectionError, ssl.SSLError):
            return b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET " + b"/a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 2_000_000 + b"\r\n\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /api/v1/pods?" + b"a=b&" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%ff%fe/%00?%ff=%fe HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    ],
)  # fmt: skip
def test_broken_requests_harm_nobody_else(server: Server, data: bytes) -> None:
    first = _raw(server, data).split(b"\r\n")[0]
    assert not re.search(rb" 5\d\d", first)
    assert server.ask("GET", "/readyz").code == 200


def test_many_idle_connections_keep_nobody_out(server: Server) -> None:
    held = [server.connect() for _ in range(150)]
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda one: one.connect(), held))
        assert server.ask("GET", f"{MAPS}/kube-root-ca.crt").code == 200
    finally:
        for one in held:
            one.close()


def test_a_watcher_that_does_not_read_holds_up_nobody(server: Server) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain, server.context.wrap_socket(
        plain, server_hostname=host
    ) as wire:  # fmt: skip
        lines = [f"GET {MAPS}?watch=1 HTTP/1.1", "Host: x", f"Authorization: Bearer {server.token}", "", ""]
        wire.sendall("\r\n".join(lines).encode())
        assert wire.recv(20).startswith(b"HTTP/1.1 200")
        for number in range(40):
            body = config_map(f"slow-{number % 2}") | {"data": {"x": str(number) * 50_000}}
            if server.ask("PUT", f"{MAPS}/slow-{number % 2}", body).code == 404:
                assert server.ask("POST", MAPS, body).code == 201
        assert server.ask("GET", f"{MAPS}/slow-1").code == 200
        wire.settimeout(60)
        data, until = b"", time.monotonic() + 60
        while data.count(b'"MODIFIED"') < 38 and time.monotonic() < until:
            data += wire.recv(1 << 20)
        assert data.count(b'"MODIFIED"') == 38
    assert json.loads(server.ask("DELETE", f"{MAPS}/slow-1").body)["status"] == "Success"
