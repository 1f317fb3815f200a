"""The agent's rights over nodes end at its own Node and at what is kgpu's there, and agents work within them."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.operator.own_node import GRANTED, OTHER, OWN_LABEL, REFUSED
from tests.operator.real.conftest import NAMESPACE, Object, Site

POLICY: Final = "validatingadmissionpolicy"
NAME: Final = "kgpu-agent-own-node"


class Account:
    """Somebody who has the token of an agent's account."""

    def __init__(self, site: Site, *bound: str, name: str = "kgpu-agent") -> None:
        self.site = site
        self.token = site.lab.kubectl("-n", NAMESPACE, "create", "token", name, *bound).strip()
        (cluster,) = json.loads(site.lab.kubectl("config", "view", "--raw", "-o", "json"))["clusters"]
        self.server = cluster["cluster"]["server"]
        ca = cluster["cluster"].get("certificate-authority")
        data = cluster["cluster"].get("certificate-authority-data")
        text = base64.b64decode(data).decode() if data else None
        self.tls = ssl.create_default_context(cafile=ca, cadata=text)

    def patch(self, node: str, change: Object, *, status: bool = False) -> tuple[int, str]:
        """The answer's code and message."""
        request = urllib.request.Request(
            f"{self.server}/api/v1/nodes/{node}{'/status' if status else ''}?dryRun=All",
            data=json.dumps(change).encode(),
            method="PATCH",
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/strategic-merge-patch+json",
            },
        )
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            said: dict[str, Any] = json.load(error)
            return error.code, said.get("message", "")


@pytest.fixture(params=["agent", "operands"])
def installed(clean: Site, request: pytest.FixtureRequest) -> Iterator[tuple[Site, Account]]:
    """Agents at work behind the policy, and somebody with the token of one of them."""
    site = clean
    site.install(f"layout={request.param}")
    site.ready()
    account, app = {
        "agent": ("kgpu-agent", "kgpu-agent"),
        "operands": ("nvidia-operator-validator", "nvidia-operator-validator"),
    }[request.param]
    pods = site.get("pods", "-n", NAMESPACE)["items"]
    pod = next(one for one in pods if one["spec"]["serviceAccountName"] == account)
    assert app in pod["metadata"]["name"]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", pod["metadata"]["name"])
    yield site, Account(site, *bound, name=account)
    site.lab.kubectl_run("delete", "node", OTHER)


def test_agents_work_within_it_and_nothing_else_is_granted(installed: tuple[Site, Account]) -> None:
    site, agent = installed
    policy = site.get(POLICY, NAME)
    assert policy["status"].get("typeChecking", {}).get("expressionWarnings", []) == []
    assert "nvidia.com/gpu.count" in site.node_labels()
    wrong = []
    for what, (status, change) in GRANTED.items():
        code, said = agent.patch(site.node, change, status=status)
        if code != 200:
            wrong.append(f"{what} is refused: {said}")
    for what, (status, change, word) in REFUSED.items():
        code, said = agent.patch(site.node, change, status=status)
        if code not in {403, 422} or "an agent of kgpu" not in said or word not in said:
            wrong.append(f"{what}: {code} {said}")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    code, said = agent.patch(OTHER, OWN_LABEL)
    if "only the Node that it runs on, which is " + site.node not in said:
        wrong.append(f"another Node: {code} {said}")
    loose = Account(site)
    code, said = loose.patch(site.node, OWN_LABEL)
    if "names no node" not in said:
        wrong.append(f"a token that names no node: {code} {said}")
    assert "\n".join(wrong) == ""
    site.uninstall()
    assert site.get(POLICY, NAME) is None
    left = [key for key in site.node_labels() if key.startswith(("nvidia.com/", "feature.node.kubernetes.io/"))]
    assert left == []
