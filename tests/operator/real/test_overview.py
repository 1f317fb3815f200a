"""The page in a real cluster: the chart's rights are enough, and two people with tokens of their own see what is theirs."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest

from kgpu.formats.names import OVERVIEW_PORT
from tests.operator.real.conftest import NAMESPACE, Site, is_ready

VALUES = ("overview.enabled=true",)
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: overview-pods}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
"""
SPACES = ("overview-a", "overview-b")


@dataclass
class Page:
    """The page at its pod's address, for whoever has the token."""

    address: str
    token: str = ""

    def ask(self, path: str = "/", method: str = "GET", body: str = "", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.address, OVERVIEW_PORT, timeout=60)
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, {**given, **more})
        return connection.getresponse()

    def html(self) -> str:
        """What is shown, "" while it is not."""
        answer = self.ask()
        return answer.read().decode() if answer.status == 200 else ""


def holder(space: str) -> dict[str, object]:
    container = {
        "name": "main", "image": "ubuntu:22.04", "command": ["sleep", "infinity"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }  # fmt: skip
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"of-{space}", "namespace": space}, "spec": spec}


@pytest.fixture
def page(site: Site) -> Iterator[Page]:
    """The page, beside two namespaces with a pod each that holds a GPU, and three accounts."""
    kubectl = site.lab.kubectl
    site.have("agent", *VALUES)
    try:
        for space in SPACES:
            kubectl("create", "namespace", space)
            kubectl("-n", space, "create", "serviceaccount", "viewer")
        kubectl("apply", "-f", "-", stdin=ROLE)
        for space in SPACES:
            words = ("create", "rolebinding", "viewer", "--clusterrole=overview-pods")
            kubectl("-n", space, *words, f"--serviceaccount={space}:viewer")
        site.until(lambda: site.get("serviceaccount", "default", "-n", SPACES[1]), "the namespaces' own accounts")
        for space in SPACES:
            kubectl("apply", "-f", "-", stdin=json.dumps(holder(space)))
            site.until(lambda space=space: is_ready(site.get("pod", f"of-{space}", "-n", space)), "the pod to run")
        pods = site.get("pods", "-n", NAMESPACE)["items"]
        (pod,) = (one for one in pods if one["metadata"]["labels"].get("app") == "kgpu-overview")
        yield Page(pod["status"]["podIP"])
    finally:
        kubectl("delete", "--ignore-not-found", "clusterrole", "overview-pods")
        kubectl("delete", "--ignore-not-found", "namespace", *SPACES)


def test_people_see_what_the_api_server_lets_them_see(site: Site, page: Page) -> None:
    kubectl = site.lab.kubectl
    assert page.ask().status == 401
    assert Page(page.address, "x.y.z").ask().status == 401
    own, other = (Page(page.address, kubectl("-n", space, "create", "token", "viewer").strip()) for space in SPACES)
    site.until(lambda: f"{SPACES[0]}/of-{SPACES[0]}" in own.html(), "the pod of his own namespace")
    site.until(lambda: f"{SPACES[1]}/of-{SPACES[1]}" in other.html(), "the pod of the other's")
    assert SPACES[1] not in own.html()
    assert SPACES[0] not in other.html()
    for html in (own.html(), other.html()):
        assert re.search(r"<dt>held</dt><dd>2\b", html), "sums are of all"
        assert site.node in html, "each sees a pod there"

    # What the account asks with the chart's rights, also of the doctor's command, is all granted.
    site.until(lambda: "kgpu doctor</th><td>not yet" not in own.html(), "the doctor's word")
    sources = own.html().partition('id="sources"')[2]
    assert "forbidden" not in sources
    assert "can&#x27;t be asked now" not in sources.partition("kgpu idle")[0]

    form = urlencode({"token": own.token})
    answer = page.ask("/sign-in", "POST", form, Origin=f"http://{page.address}:{OVERVIEW_PORT}")
    cookie = answer.headers["Set-Cookie"]
    assert (answer.status, "HttpOnly; SameSite=Strict" in cookie) == (303, True)
    assert SPACES[0] in page.ask(Cookie=cookie.partition(";")[0]).read().decode()
    assert page.ask("/sign-in", "POST", form, Origin="http://evil.example").status == 403

    kubectl("-n", SPACES[0], "delete", "rolebinding", "viewer")
    kubectl("-n", SPACES[1], "delete", "serviceaccount", "viewer")
    site.until(lambda: SPACES[0] not in own.html(), "the end of a right")
    assert re.search(r"<dt>held</dt><dd>2\b", own.html())
    assert site.node not in own.html().partition("<main")[2]
    site.until(lambda: other.ask().status == 401, "the end of a token")
    assert kubectl("-n", NAMESPACE, "logs", "deploy/kgpu-overview").find(own.token) == -1
