"""What the embedded cluster leaves out, as docs/explanation/embedded-cluster.md says: refused, or taken without effect."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.lab.embedded.served import Server

PROTOBUF = "application/vnd.kubernetes.protobuf"
MAPS = "/api/v1/namespaces/default/configmaps"
ADMISSION = "/apis/admissionregistration.k8s.io"
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"
ON_MAPS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
NOWHERE = {"url": "https://127.0.0.1:1/"}


@contextlib.contextmanager
def there(server: Server, path: str, kind: str, name: str, **parts: Any) -> Iterator[dict[str, Any]]:
    """An object that is taken, and deleted at the end."""
    words = path.split("/")
    version = words[2] if words[1] == "api" else "/".join(words[2:4])
    made = server.ask("POST", path, {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **parts})
    assert made.code == 201, made.body
    try:
        yield made.value
    finally:
        server.ask("DELETE", f"{path}/{name}")


# Refused


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("rest", ["", "/", "/metrics", "/stats/summary"])
def test_nodes_are_not_proxied_to(server: Server, method: str, rest: str) -> None:
    with there(server, "/api/v1/nodes", "Node", "left-out"):
        refused = server.ask(method, f"/api/v1/nodes/left-out/proxy{rest}")
    assert (refused.code, refused.value["message"]) == (
        501, "the embedded lab can't proxy to nodes; use the real lab for that (kgpu lab up --real)"
    )  # fmt: skip
    assert server.ask(method, f"/api/v1/nodes/none/proxy{rest}").code == 404
    assert server.ask(method, f"/api/v1/nodes/left-out/proxy{rest}", Impersonate_User="joe").code == 403


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_mutating_policies_are_not_served(server: Server, version: str) -> None:
    assert server.ask("GET", f"{ADMISSION}/{version}/mutatingadmissionpolicies").code == 404


def test_there_are_no_metrics_of_other_servers(server: Server) -> None:
    for group, version in (("custom.metrics.k8s.io", "v1beta2"), ("external.metrics.k8s.io", "v1beta1")):
        assert group not in {one["name"] for one in server.ask("GET", "/apis").value["groups"]}
        assert server.ask("GET", f"/apis/{group}/{version}").code == 404


def test_a_crd_with_a_conversion_webhook_is_refused(server: Server) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": NOWHERE}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "lefts.example.org"},
        "spec": {
            "group": "example.org", "scope": "Cluster", "names": {"plural": "lefts", "kind": "Left"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        },
    }  # fmt: skip
    refused = server.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert refused.code == 422
    assert "spec.conversion" in refused.value["message"]


def test_protobuf_is_never_the_answer(server: Server) -> None:
    found = server.ask("GET", MAPS, Accept=f"{PROTOBUF}, application/json")
    assert (found.code, found.headers["content-type"]) == (200, "application/json")
    assert server.ask("GET", MAPS, Accept=PROTOBUF).code == 406


# Taken, without effect


@pytest.mark.parametrize("kind", ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"])
def test_no_webhook_is_asked(server: Server, kind: str) -> None:
    """One that refuses whatever it can't be asked about, at an address where nobody listens."""
    webhook = {
        "name": "none.example.org", "clientConfig": NOWHERE, "rules": [ON_MAPS], "failurePolicy": "Fail",
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    }  # fmt: skip
    with (
        there(server, f"{ADMISSION}/v1/{kind.lower()}s", kind, "left-out", webhooks=[webhook]),
        there(server, MAPS, "ConfigMap", "left-out"),
    ):
        pass


def test_pod_security_labels_refuse_nothing(server: Server) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "left-out", "labels": labels}}
    assert server.ask("POST", "/api/v1/namespaces", space).code == 201
    container = {"name": "c", "image": "x", "securityContext": {"privileged": True}}
    path = "/api/v1/namespaces/left-out/pods"
    with there(server, path, "Pod", "p", spec={"hostPID": True, "containers": [container], "hostNetwork": True}):
        pass
    server.ask("DELETE", "/api/v1/namespaces/left-out")


def test_another_servers_apis_are_never_available(server: Server) -> None:
    service = {"name": "other", "namespace": "default"}
    spec = {
        "group": "left.example.org", "version": "v1", "service": service, "groupPriorityMinimum": 100,
        "versionPriority": 100, "insecureSkipTLSVerify": True,
    }  # fmt: skip
    path = "/apis/apiregistration.k8s.io/v1/apiservices"
    with there(server, path, "APIService", "v1.left.example.org", spec=spec):
        found = server.ask("GET", f"{path}/v1.left.example.org").value
        said = [one["status"] for one in found.get("status", {}).get("conditions", ()) if one["type"] == "Available"]
        assert "True" not in said
        assert server.ask("GET", "/apis/left.example.org/v1/things").code == 404


@pytest.mark.parametrize(("kind", "plural", "spec"), [
    ("NetworkPolicy", "networkpolicies", {"podSelector": {}, "policyTypes": ["Ingress"]}),
    ("Ingress", "ingresses", {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}),
])  # fmt: skip
def test_rules_of_the_network_are_kept_as_they_are(server: Server, kind: str, plural: str, spec: Any) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/default/{plural}"
    with there(server, path, kind, "left-out", spec=spec):
        found = server.ask("GET", f"{path}/left-out").value
        assert found["spec"] == spec
        assert not found.get("status", {}).get("loadBalancer")


def test_a_certificate_request_can_be_approved_and_nobody_signs(server: Server) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "joe")])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    spec = {
        "request": base64.b64encode(asked.public_bytes(serialization.Encoding.PEM)).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
    }  # fmt: skip
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    with there(server, path, "CertificateSigningRequest", "left-out", spec=spec) as made:
        yes = {"type": "Approved", "status": "True", "reason": "ByHand", "message": "yes"}
        made["status"] = {"conditions": [yes]}
        approved = server.ask("PUT", f"{path}/left-out/approval", made)
        assert approved.code == 200
        assert [one["type"] for one in approved.value["status"]["conditions"]] == ["Approved"]
        assert "certificate" not in server.ask("GET", f"{path}/left-out").value["status"]


def test_no_request_waits_for_another(server: Server) -> None:
    """A level without a seat, for all that everybody asks: the real server would keep every request waiting."""
    nobody = {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}}
    everybody = [{"kind": "Group", "group": {"name": one}} for one in ("system:authenticated", "system:masters")]
    rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}]
    flow = {
        "matchingPrecedence": 1, "priorityLevelConfiguration": {"name": "left-out"},
        "rules": [{"subjects": everybody, "resourceRules": rules}],
    }  # fmt: skip
    with (
        there(server, f"{FLOW}/prioritylevelconfigurations", "PriorityLevelConfiguration", "left-out", spec=nobody),
        there(server, f"{FLOW}/flowschemas", "FlowSchema", "left-out", spec=flow),
    ):
        found = server.ask("GET", MAPS)
        assert found.code == 200
        assert not [name for name in found.headers if name.startswith("x-kubernetes-pf")]
