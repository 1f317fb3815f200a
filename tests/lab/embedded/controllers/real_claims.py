"""A namespace of a real API server for the story of claims."""

from __future__ import annotations

import time

from kgpu.kube.port import PODS, Object, Resource
from tests.lab.embedded.types import verdicts
from tests.lab.embedded.types.real_server import RealServer


class RealNamespace:
    """The story's backend. Waits for no one: the server's answers are asked for one by one."""

    def __init__(self, server: RealServer, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    def prepare(self) -> None:
        """Make the namespace, and wait for what its pods need."""
        self._server.call("POST", "/api/v1/namespaces", {"metadata": {"name": self._namespace}})
        account = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/default"
        while self._server.call("GET", account)[0] != 200:
            time.sleep(0.05)

    def _path(self, resource: Resource, *more: str) -> str:
        root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
        return "/".join((f"{root}/namespaces/{self._namespace}/{resource.plural}", *(part for part in more if part)))

    async def create(self, resource: Resource, obj: Object, subresource: str = "") -> Object:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        name = obj["metadata"]["name"] if subresource else ""
        code, found = self._server.call("POST", self._path(resource, name, subresource), body)
        assert code == 201, found
        return found

    async def patch(self, resource: Resource, name: str, change: Object, subresource: str = "") -> Object:
        code, found = self._server.call("PATCH", self._path(resource, name, subresource), change, verdicts.MERGE)
        assert code == 200, found
        return found

    async def delete(self, resource: Resource, name: str) -> None:
        options = {"gracePeriodSeconds": 0} if resource == PODS else {}
        code, found = self._server.call("DELETE", self._path(resource, name), options)
        assert code == 200, found

    async def list(self, resource: Resource) -> list[Object]:
        found: list[Object] = self._server.call("GET", self._path(resource))[1]["items"]
        return found
