"""Somebody who has the token of one of kgpu's accounts, and what the API server answers them."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from tests.operator.real.conftest import NAMESPACE, Object, Site


class Account:
    """Somebody who has the token of an agent's account."""

    def __init__(self, site: Site, *bound: str, name: str = "kgpu-agent") -> None:
        self.site, self.name = site, name
        self.token = site.lab.kubectl("-n", NAMESPACE, "create", "token", name, *bound).strip()
        (cluster,) = json.loads(site.lab.kubectl("config", "view", "--raw", "-o", "json"))["clusters"]
        self.server = cluster["cluster"]["server"]
        ca = cluster["cluster"].get("certificate-authority")
        data = cluster["cluster"].get("certificate-authority-data")
        text = base64.b64decode(data).decode() if data else None
        self.tls = ssl.create_default_context(cafile=ca, cadata=text)

    def patch(self, node: str, change: Object, *, status: bool = False) -> tuple[int, str]:
        """The answer's code and message."""
        path = f"/api/v1/nodes/{node}{'/status' if status else ''}"
        return self.ask("PATCH", path, change, media="application/strategic-merge-patch+json")

    def ask(
        self, method: str, path: str, body: Object | None = None, *, media: str = "application/json", dry: bool = True
    ) -> tuple[int, str]:
        """The answer's code and message; ``dry``: nothing is changed."""
        request = urllib.request.Request(
            f"{self.server}{path}{'?dryRun=All' if dry else ''}",
            data=json.dumps(body).encode() if body is not None else None,
            method=method,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": media},
        )
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            said: dict[str, Any] = json.load(error)
            return error.code, said.get("message", "")


def account_of(site: Site, name: str) -> Account:
    """Somebody who has taken the token of a pod with this account."""
    pods = site.get("pods", "-n", NAMESPACE)["items"]
    pod = next(one for one in pods if one["spec"]["serviceAccountName"] == name)
    return Account(site, "--bound-object-kind", "Pod", "--bound-object-name", pod["metadata"]["name"], name=name)
