"""Somebody has an agent's token: every resource that the API server has is tried, and what answers is listed.

The brute force knows no rule of the chart. What RBAC lets a token reach stands in ``REACHED``; of what can be changed there, only
the token's own Node is (``test_admission.py`` tries what of it), and the Events about it. What may be read besides are all Nodes:
RBAC knows no "own" one, and admission sees no reads.
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

from kgpu.formats.crd.definitions import nfd_crds
from tests.charts.test_account_rights import CHART_OPTIONS
from tests.operator import account_rights
from tests.operator.own_node import FEATURES_CRD, OTHER, event, refused_events
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
    "create /events in default", "patch /events in default",
}  # fmt: skip
"""The verbs that a token of the agent's is not refused: with its own Node's name for the changes of Nodes. ConfigMaps are not among
them: only who names one in a field selector may read it, and ``reads_config_maps_by_name_alone`` tries that."""

OF_THE_FINDER: Final = REACHED - {"patch /nodes/status"}

FEATURES_PUBLISHED: Final = {
    f"get /pods in {NAMESPACE}",
    *(f"{verb} nfd.k8s-sigs.io/nodefeatures in {NAMESPACE}" for verb in ("get", "create", "patch", "delete")),
}
"""Where node feature discovery's kind is."""
POD_LABELS: Final = {f"{verb} /pods in {place}" for verb in ("get", "list", "watch") for place in NAMESPACES}
CLAIMS: Final = {
    *(f"{verb} resource.k8s.io/resourceslices" for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(f"get resource.k8s.io/resourceclaims in {place}" for place in NAMESPACES),
}
POD_ACCOUNTS: Final = {f"get /pods in {place}" for place in NAMESPACES}
"""For the NRI plugin."""

CONFIGS: Final = {
    "plugin-configs": {"any": "version: v1"},
    "counters": {"metrics": "DCGM_FI_DEV_GPU_TEMP, gauge, heat"},
}
OPTIONS: Final = (
    "devicePlugin.config.name=plugin-configs", "dcgmExporter.config.name=counters",
    "dcgmExporter.enablePodLabels=true", "nodeStatusExporter.enabled=true",
    "dcgmExporter.env[0].name=KUBERNETES_ENABLE_DRA", "dcgmExporter.env[0].value=true", *CHART_OPTIONS,
)  # fmt: skip
"""What adds a right, as tests/charts/test_account_rights.py has it."""


@dataclass(frozen=True, slots=True)
class Stolen:
    """A token of an account: the rights that it has, and the ConfigMaps that it may read."""

    account: str
    reached: set[str]
    config_maps: tuple[str, ...] = ("kgpu-agent",)


OF_MIG: Final = ("default-mig-parted-config", "default-gpu-clients")
"""What the MIG manager reads."""
FINDER: Final = Stolen("kgpu-node-features", OF_THE_FINDER)
INSTALLATIONS: Final = {
    "agent": (Stolen("kgpu-agent", REACHED, ("kgpu-agent", *OF_MIG)), FINDER),
    "operands": (Stolen("nvidia-operator-validator", REACHED),),
    "agent-with-options": (
        Stolen("kgpu-agent", REACHED | FEATURES_PUBLISHED | POD_LABELS | CLAIMS, ("kgpu-agent", *OF_MIG, *CONFIGS)),
    ),
    "operands-with-options": (
        Stolen(
            "nvidia-gpu-feature-discovery", OF_THE_FINDER | FEATURES_PUBLISHED, ("kgpu-agent", "plugin-configs")
        ),
        Stolen("nvidia-container-toolkit", OF_THE_FINDER | POD_ACCOUNTS),
    ),
}  # fmt: skip
"""The tokens that are tried; what every other account may do is compared with what was reviewed."""

FEATURES_KIND: Final = FEATURES_CRD["metadata"]["name"]
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
        try:
            self.connection.request(method, path, text, headers)
            answer = self.connection.getresponse()
        except (http.client.HTTPException, OSError):  # an API server ends connections that have been idle
            self.connection.close()
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


@pytest.fixture(scope="module")
def tenants(site: Site) -> Iterator[Site]:
    """Tenants' objects, in kgpu's own namespace too; nothing of them is left afterwards."""
    site.gone()
    for namespace in (TENANT, NAMESPACE):
        site.lab.kubectl_run("create", "namespace", namespace)
        site.lab.kubectl("-n", namespace, "create", "secret", "generic", "theirs", "--from-literal=a=b")
        site.lab.kubectl("-n", namespace, "create", "configmap", "theirs", "--from-literal=a=b")
    yield site
    site.gone()
    for words in (("namespace", TENANT), ("namespace", NAMESPACE)):
        site.lab.kubectl_run("delete", *words)


@pytest.fixture(scope="module")
def options(tenants: Site) -> Iterator[None]:
    """What an installation with options needs, from before it."""
    site = tenants
    site.gone()
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(FEATURES_CRD))
    for name, data in CONFIGS.items():
        found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        site.lab.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(found))
    yield
    site.gone()
    kinds = {FEATURES_KIND, *(definition["metadata"]["name"] for definition in nfd_crds())}  # an uninstall leaves them
    site.lab.kubectl_run("delete", "crd", "--ignore-not-found", *kinds)


@pytest.fixture(params=INSTALLATIONS)
def installed(tenants: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Site, str]]:
    """An installation with tenants' objects beside it, and its name."""
    site = tenants
    layout, _, with_options = request.param.partition("-with-")
    if with_options:
        request.getfixturevalue("options")
    site.have(layout, *(OPTIONS if with_options else ()))
    yield site, request.param
    site.values = None  # a policy's binding is gone: the next upgrade brings it back
    site.lab.kubectl_run("delete", "node", OTHER)


def reached_by(site: Site, asker: Asker) -> set[str]:
    """The rights that the API server did not miss when everything was tried."""
    answers: dict[str, tuple[int, str]] = {}
    for one in tries(site):
        answers.setdefault(one.told, asker.ask(METHODS[one.verb], one.path, one.body))
    assert len(answers) > 1000, "the API server lists fewer resources than every release has"
    return {told for told, (code, said) in answers.items() if not refused_for_want_of_a_right(code, said)}


def test_all_that_it_reaches_is_listed_and_all_it_changes_is_its_own_node(installed: tuple[Site, str]) -> None:
    """One installation for all that is tried: that takes most of a minute."""
    site, installation = installed
    site.until(lambda: differences(site, installation) == [], "the rights to be those that were reviewed")
    for stolen in INSTALLATIONS[installation]:
        with contextlib.closing(Asker(token_of(site, stolen))) as asker:
            reaches_what_is_listed(site, asker, stolen)
            reads_config_maps_by_name_alone(site, asker, stolen)
    stolen = INSTALLATIONS[installation][0]
    with contextlib.closing(Asker(token_of(site, stolen))) as asker:
        changes_its_own_node_alone(site, asker)
        writes_events_of_its_own_node_alone(site, asker)
        ends_with_its_pod(site, asker)


def token_of(site: Site, stolen: Stolen) -> Account:
    """The token of one of its pods; a finder has none where every node has a GPU."""
    pods = site.get("pods", "-n", NAMESPACE)["items"]
    if any(pod["spec"]["serviceAccountName"] == stolen.account for pod in pods):
        return account_of(site, stolen.account)
    return Account(site, name=stolen.account)


def differences(site: Site, installation: str) -> list[str]:
    """Where ``kubectl auth can-i --list`` says something else than what was reviewed, of every account that is there."""
    found = []
    namespaces = (NAMESPACE, "default", TENANT)
    everybodys = {namespace: can_i(site, "nobody", namespace) for namespace in namespaces}
    for file in sorted((account_rights.FOLDER / installation).iterdir()):
        if file.stem in {"kgpu-crds", "gpu-operator-cleanup"}:  # what a hook may do while it runs
            continue
        rights = account_rights.read(installation, file.stem)
        for namespace in namespaces:
            wanted = rights.get("", frozenset()) | rights.get(namespace, frozenset())
            listed = can_i(site, file.stem, namespace) - everybodys[namespace]
            found += [f"{file.stem} in {namespace}: {right}" for right in sorted(wanted ^ listed)]
    return found


def can_i(site: Site, account: str, namespace: str) -> frozenset[account_rights.Right]:
    words = ("auth", "can-i", "--list", "--no-headers", "-n", namespace)
    return account_rights.of_kubectl(
        site.lab.kubectl(*words, f"--as=system:serviceaccount:{NAMESPACE}:{account}").rstrip("\n")
    )


def reaches_what_is_listed(site: Site, asker: Asker, stolen: Stolen) -> None:
    assert reached_by(site, asker) == stolen.reached, stolen.account
    beside = {path: asker.ask("GET", path.format(node=site.node))[0] for path in PATHS_BESIDE}
    assert beside == dict.fromkeys(PATHS_BESIDE, 403)


def reads_config_maps_by_name_alone(site: Site, asker: Asker, stolen: Stolen) -> None:
    """Whoever lists or follows has to name a ConfigMap that the account may read."""
    folder = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    there = [one["metadata"]["name"] for one in site.lab.ask(folder)["items"]]
    assert {"theirs", *stolen.config_maps} <= set(there)
    for name in there:
        codes = [
            asker.ask("GET", f"{folder}?fieldSelector=metadata.name%3D{name}{more}")[0]
            for more in ("", "&watch=true&timeoutSeconds=1")
        ]
        assert codes == [200 if name in stolen.config_maps else 403] * 2, name


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


def writes_events_of_its_own_node_alone(site: Site, asker: Asker) -> None:
    """Others' can neither be made nor changed nor, by a change of nothing, be read; without the policy they could."""
    folder = "/api/v1/namespaces/default/events"
    merge = "application/merge-patch+json"
    own = event(site.node, "its-own")
    assert asker.account.ask("POST", folder, own)[0] == 201
    given = refused_events(site.node)
    for one in (own, *(one for one, _ in given.values())):
        site.lab.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Event", **one}))
    assert asker.account.ask("PATCH", f"{folder}/its-own", {"count": 2}, media=merge) == (200, "")
    for what, (one, word) in given.items():
        place = f"{folder}/{one['metadata']['name']}"
        anew = {**one, "metadata": {**one["metadata"], "name": "tried"}}
        turned = {key: one[key] for key in ("involvedObject", "source", "reportingComponent")}
        for method, path, body in (
            ("POST", folder, anew), ("PATCH", place, {}), ("PATCH", place, {"count": 9}),
            ("PATCH", f"{folder}/its-own", turned),
        ):  # fmt: skip
            media = "application/json" if method == "POST" else merge
            code, said = asker.account.ask(method, path, body, media=media)
            assert code in {403, 422}, what
            assert word in said, what
    site.lab.kubectl("delete", "validatingadmissionpolicybinding", "kgpu-agent-own-events")
    for place, body in ((f"{folder}/of-a-pod", {"count": 9}), (f"{folder}/of-another", {})):
        site.until(
            lambda place=place, body=body: asker.account.ask("PATCH", place, body, media=merge)[0] == 200,
            "a change to be taken without the policy",
        )
    assert site.lab.server("DELETE", folder)[0] == 200  # kubectl deletes and awaits each by itself


def ends_with_its_pod(site: Site, asker: Asker) -> None:
    pods = site.get("pods", "-n", NAMESPACE)["items"]
    pod = next(one for one in pods if one["spec"]["serviceAccountName"] == asker.account.name)
    place = ("-n", NAMESPACE, "delete", "pod", pod["metadata"]["name"], "--wait=true")
    site.lab.kubectl(*place)
    site.until(lambda: asker.ask("GET", f"/api/v1/nodes/{site.node}")[0] == 401, "the token to be refused")
