"""What a real API server makes of a row, to compare with ``verdicts``."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.lab.embedded.types import verdicts
from tests.lab.embedded.types.row import Object, Row


class RealServer:
    """A real API, over certificates of the client or a token in ``headers``."""

    def __init__(self, base: str, context: ssl.SSLContext, headers: Mapping[str, str] | None = None) -> None:
        self._base = base
        self._context = context
        self._headers = dict(headers or {})

    @classmethod
    def of_kubeconfig(cls, kubeconfig: Object) -> RealServer:
        cluster = kubeconfig["clusters"][0]["cluster"]
        user = kubeconfig["users"][0]["user"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        return cls(cluster["server"], context)

    @classmethod
    def with_token(cls, base: str, token: str) -> RealServer:
        """One on this machine, with a certificate that it made itself."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return cls(base, context, {"Authorization": f"Bearer {token}"})

    def call(self, verb: str, path: str, body: Any = None, content: str = "application/json") -> tuple[int, Object]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content, **self._headers}
        request = urllib.request.Request(self._base + path, data=data, method=verb, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self._context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def path(self, manifest: Object) -> str:
        kind = verdicts.kind_of(manifest)
        root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        namespace = manifest["metadata"].get("namespace")
        return f"{root}/namespaces/{namespace}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"

    def judged(self, row: Row, namespace: str) -> tuple[int, Any]:
        manifest = verdicts.settled(row.manifest, namespace)
        path = self.path(manifest)
        if row.patch is None:
            code, found = self.call("POST", f"{path}?dryRun=All", manifest)
        else:
            self.call("POST", path, manifest)
            own = "/".join((path, manifest["metadata"]["name"], *([row.subresource] if row.subresource else [])))
            if row.first is not None:
                assert self.call("PATCH", own, row.first, verdicts.MERGE)[0] == 200
            code, found = self.call("PATCH", f"{own}?dryRun=All", row.patch, verdicts.MERGE)
        if code >= 300:
            return code, verdicts.words(found["message"])
        return code, verdicts.plain(found) if row.patch is None or row.subresource else verdicts.changed(found)
