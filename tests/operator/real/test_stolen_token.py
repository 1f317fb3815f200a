"""Somebody has an agent's token: every resource that the API server has is tried, and what answers is listed.

The brute force knows no rule of the chart. What may be reached stands in ``REACHED``; of what can be changed there, only the
token's own Node is (``test_admission.py`` tries what of it).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.operator.own_node import OTHER
from tests.operator.real.account import Account, account_of
from tests.operator.real.conftest import NAMESPACE, Object, Site

TENANT: Final = "tenant-of-the-stolen"
# Where a namespaced resource is tried: kgpu's own, where Events about Nodes are, the control plane's, and a tenant's.
NAMESPACES: Final = (NAMESPACE, "default", "kube-system", TENANT)
PATHS_BESIDE: Final = ("/metrics", "/logs/", "/debug/pprof/", "/configz", "/api/v1/nodes/{node}/proxy/pods")
EVERYBODY: Final = {
    "create authentication.k8s.io/selfsubjectreviews",
    "create authorization.k8s.io/selfsubjectaccessreviews",
    "create authorization.k8s.io/selfsubjectrulesreviews",
}
"""What the API server lets every account ask about itself."""

REACHED: Final = EVERYBODY | {
    "get /nodes", "list /nodes", "watch /nodes", "patch /nodes", "patch /nodes/status",
    f"list /configmaps in {NAMESPACE}", f"watch /configmaps in {NAMESPACE}",
    "get /events in default", "create /events in default", "patch /events in default",
}  # fmt: skip
"""The verbs that a token of the agent's is not refused: with its own Node's name for the changes of Nodes."""

OF_THE_FINDER: Final = {told for told in REACHED if "configmaps" not in told and told != "patch /nodes/status"}
"""The finder's account, whose right to read ConfigMaps ends at one name."""

METHODS: Final = {
    "get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH",
    "delete": "DELETE", "deletecollection": "DELETE",
}  # fmt: skip
WITH_NAME: Final = {"get", "update", "patch", "delete"}


@dataclass(frozen=True, slots=True)
class Try:
    """One request: ``told`` is the right that it needs."""

    told: str
    verb: str
    path: str
    body: Object | None


class Asker:
    """One connection to the API server with one token."""

    def __init__(self, account: Account) -> None:
        place = urllib.parse.urlsplit(account.server)
        self.connection = http.client.HTTPSConnection(place.hostname or "", place.port, context=account.tls, timeout=60)
        self.account = account

    def ask(self, method: str, path: str, body: Object | None = None) -> tuple[int, str]:
        """The answer's code and its text."""
        headers = {"Authorization": f"Bearer {self.account.token}", "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        text = json.dumps(body) if body is not None else None
        self.connection.request(method, path, text, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")

    def close(self) -> None:
        """The end of the connection."""
        self.connection.close()


def resources(site: Site) -> Iterator[tuple[str, str, Object]]:
    """Path of the group and version, the group's name, and the resource, for everything that is served."""
    places = [("/api/v1", "")]
    for group in site.lab.ask("/apis")["groups"]:
        places += [(f"/apis/{version['groupVersion']}", group["name"]) for version in group["versions"]]
    for path, group in places:
        for resource in site.lab.ask(path)["resources"]:
            yield path, group, resource


def tries(site: Site) -> Iterator[Try]:
    """Every verb on every resource: of objects that are there where there are some, for the agent's own Node first."""
    for path, group, resource in resources(site):
        name, _, part = resource["name"].partition("/")
        for namespace in NAMESPACES if resource["namespaced"] else ("",):
            folder = f"{path}/namespaces/{namespace}/{name}" if namespace else f"{path}/{name}"
            there = first_name(site, folder) if name != "nodes" else site.node
            for verb in METHODS:
                told = f"{verb} {group}/{resource['name']}" + (f" in {namespace}" if namespace else "")
                named = verb in WITH_NAME or part
                target = f"{folder}/{there}" + (f"/{part}" if part else "") if named else folder
                yield Try(told, verb, target + query(verb), body_of(verb, path, resource, there))


def query(verb: str) -> str:
    words = {"watch": "?watch=true&timeoutSeconds=1", "list": "?limit=1", "get": ""}
    return words.get(verb, "?dryRun=All")


def body_of(verb: str, path: str, resource: Object, name: str) -> Object | None:
    if verb == "patch":
        return {"metadata": {"labels": {"nvidia.com/gpu.count": "3"}}}
    if verb in {"create", "update"}:
        version = path.removeprefix("/apis/").removeprefix("/api/")
        return {"apiVersion": version, "kind": resource["kind"], "metadata": {"name": name}}
    return None


def first_name(site: Site, folder: str) -> str:
    """The name of an object that is there, else one that nothing has."""
    found = (site.lab.ask(f"{folder}?limit=1") or {}).get("items") or []
    return found[0]["metadata"]["name"] if found else "nothing-has-this-name"


def refused_for_want_of_a_right(code: int, said: str) -> bool:
    return code == 403 and " cannot " in said


@pytest.fixture(params=["agent", "operands"])
def stolen(clean: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Site, Asker]]:
    """An installation with tenants' objects beside it, and the token of the agent's pod."""
    site = clean
    site.install(f"layout={request.param}")
    site.ready()
    site.lab.kubectl("create", "namespace", TENANT)
    site.lab.kubectl("-n", TENANT, "create", "secret", "generic", "theirs", "--from-literal=a=b")
    site.lab.kubectl("-n", TENANT, "create", "configmap", "theirs", "--from-literal=a=b")
    account = account_of(site, {"agent": "kgpu-agent", "operands": "nvidia-operator-validator"}[request.param])
    with contextlib.closing(Asker(account)) as asker:
        yield site, asker
    site.lab.kubectl("delete", "namespace", TENANT)
    site.lab.kubectl_run("delete", "node", OTHER)


def reached_by(site: Site, asker: Asker) -> set[str]:
    """The rights that the API server did not miss when everything was tried."""
    answers: dict[str, tuple[int, str]] = {}
    for one in tries(site):
        answers.setdefault(one.told, asker.ask(METHODS[one.verb], one.path, one.body))
    assert len(answers) > 1000, "the API server lists fewer resources than every release has"
    return {told for told, (code, said) in answers.items() if not refused_for_want_of_a_right(code, said)}


def test_all_that_it_reaches_is_listed_and_all_it_changes_is_its_own_node(stolen: tuple[Site, Asker]) -> None:
    """One installation for all that is tried: that takes most of a minute."""
    site, asker = stolen
    reaches_what_is_listed(site, asker)
    changes_its_own_node_alone(site, asker)
    ends_with_its_pod(site, asker)


def reaches_what_is_listed(site: Site, asker: Asker) -> None:
    assert reached_by(site, asker) == REACHED
    with contextlib.closing(Asker(Account(site, name="kgpu-node-features"))) as finder:
        assert reached_by(site, finder) == OF_THE_FINDER
    beside = {path: asker.ask("GET", path.format(node=site.node))[0] for path in PATHS_BESIDE}
    assert beside == dict.fromkeys(PATHS_BESIDE, 403)


def changes_its_own_node_alone(site: Site, asker: Asker) -> None:
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    change = body_of("patch", "", {}, "")
    codes = {
        f"{name}{part}": asker.ask("PATCH", f"/api/v1/nodes/{name}{part}?dryRun=All", change)[0]
        for name in (site.node, OTHER)
        for part in ("", "/status")
    }
    assert codes[site.node] == 200
    assert {code for place, code in codes.items() if place.startswith(OTHER)} <= {403, 422}


def ends_with_its_pod(site: Site, asker: Asker) -> None:
    pods = site.get("pods", "-n", NAMESPACE)["items"]
    pod = next(one for one in pods if one["spec"]["serviceAccountName"] == asker.account.name)
    place = ("-n", NAMESPACE, "delete", "pod", pod["metadata"]["name"], "--wait=true")
    site.lab.kubectl(*place)
    site.until(lambda: asker.ask("GET", f"/api/v1/nodes/{site.node}")[0] == 401, "the token to be refused")
