"""The page in a real cluster: the chart's rights are enough, and two people with tokens of their own see what is theirs."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest

from tests.operator.real.conftest import NAMESPACE, Site, is_ready
from tests.operator.real.test_rights import asked

VALUES = ("overview.enabled=true",)
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: overview-pods}
rules: [{apiGroups: [""], resources: [pods, pods/log], verbs: [get]}]
"""
SPACES = ("overview-a", "overview-b")


@dataclass
class Page:
    """The page at the end of a port-forward, for whoever has the token."""

    port: int
    token: str = ""
    cookie: str = ""

    def ask(self, path: str = "/", method: str = "GET", body: str = "", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        given |= {"Cookie": self.cookie} if self.cookie else {}
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


@contextmanager
def forwarded(site: Site) -> Iterator[int]:
    """The port of this machine that leads to the page, as a user has it."""
    words = ("-n", NAMESPACE, "port-forward", "service/kgpu-overview", ":80")
    command = [site.lab.kubectl_program, "--kubeconfig", str(site.lab.kubeconfig), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            yield int(line.partition("127.0.0.1:")[2].partition(" ")[0])
        finally:
            process.terminate()


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
        with forwarded(site) as port:
            yield Page(port)
    finally:
        kubectl("delete", "--ignore-not-found", "clusterrole", "overview-pods")
        kubectl("delete", "--ignore-not-found", "namespace", *SPACES)


def test_people_see_what_the_api_server_lets_them_see(site: Site, page: Page) -> None:
    kubectl = site.lab.kubectl
    assert page.ask().status == 401
    assert Page(page.port, "x.y.z").ask().status == 401
    own, other = (Page(page.port, kubectl("-n", space, "create", "token", "viewer").strip()) for space in SPACES)
    mine, theirs = (f"{space}/of-{space}" for space in SPACES)

    def sums(html: str) -> bool:
        return re.search(r"<dt>held</dt><dd>2\b", html) is not None

    def shown(to: Page, good: Callable[[str], bool], what: str) -> str:
        """What is shown to somebody once it is so; a page that is refused as one of too many is none."""
        return site.until(lambda: (html := to.html()) and good(html) and html, what) or ""

    first = shown(own, lambda html: mine in html and sums(html), "his own pod, and sums of all")
    second = shown(other, lambda html: theirs in html and sums(html), "the other's pod, and sums of all")
    assert (SPACES[1] in first, SPACES[0] in second) == (False, False)
    assert (site.node in first, site.node in second) == (True, True), "each sees a pod there"

    # What the account asks with the chart's rights, also by the doctor's command, is all granted.
    first = shown(own, lambda html: "kgpu doctor</th><td>not yet" not in html, "the doctor's word")
    assert "no answer now" not in first.partition('id="sources"')[2].partition("kgpu idle")[0]
    assert [request for request in asked(site)[1] if request.startswith("kgpu-overview:")] == []

    form = urlencode({"token": own.token})
    answer = page.ask("/sign-in", "POST", form, Origin=f"http://127.0.0.1:{page.port}")
    cookie = answer.headers["Set-Cookie"]
    assert (answer.status, "HttpOnly; SameSite=Strict" in cookie) == (303, True)
    signed_in = Page(page.port, cookie=cookie.partition(";")[0])
    shown(signed_in, lambda html: mine in html, "the same by the cookie")
    assert page.ask("/sign-in", "POST", form, Origin="http://evil.example").status == 403

    kubectl("-n", SPACES[0], "delete", "rolebinding", "viewer")
    kubectl("-n", SPACES[1], "delete", "serviceaccount", "viewer")
    for one in (own, signed_in):
        html = shown(one, lambda html: SPACES[0] not in html.partition("<main")[2] and sums(html), "the end of a right")
        assert site.node not in html.partition("<main")[2]
    site.until(lambda: other.ask().status == 401, "the end of a token")
    logs = kubectl("-n", NAMESPACE, "logs", "deploy/kgpu-overview")
    assert (own.token in logs, cookie.partition("=")[2][:20] in logs) == (False, False)
