"""Asks a real API server every case.

``python -m tests.lab.embedded.crd.real_answers KUBECTL KUBECONFIG`` writes ``answers.json``.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.lab.embedded.crd.asking import answer
from tests.lab.embedded.crd.cases import GROUP, OBJECTS, SCHEMAS
from tests.lab.embedded.crd.definition_cases import DEFINITIONS
from tests.lab.embedded.crd.update_cases import UPDATES

Raw = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SPACE = "kgpu-crd-test"
ANSWERS = Path(__file__).parent / "answers.json"


class Real:
    """A real API server behind ``kubectl proxy``."""

    def __init__(self, base: str) -> None:
        self.base = base

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Raw, list[str]]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(f"{self.base}{path}", data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                code, found, raw = reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                code, found, raw = error.code, error.headers, error.read()
        warnings = [
            one.split('"', 1)[1].rsplit('"', 1)[0].replace('\\"', '"') for one in found.get_all("Warning") or ()
        ]
        try:
            return code, json.loads(raw), warnings
        except ValueError:
            return code, {"kind": "Status", "message": raw.decode()}, warnings

    def answer(self, method: str, path: str, body: Raw) -> Raw:
        code, found, warnings = self.call(method, f"{path}{'&' if '?' in path else '?'}dryRun=All", body)
        return answer(code, found, warnings)


def recorded() -> Raw:
    """Every case's answer as it was when it was last asked."""
    found: Raw = json.loads(ANSWERS.read_text())
    return found


@contextlib.contextmanager
def proxy(kubectl: str, kubeconfig: str) -> Iterator[Real]:
    process = subprocess.Popen(
        [kubectl, "--kubeconfig", kubeconfig, "proxy", "--port=0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield Real(f"http://{process.stdout.readline().split()[-1]}")
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def path_of(plural: str, body: Raw) -> str:
    spec = SCHEMAS[plural]["spec"]
    version = body.get("apiVersion", f"{GROUP}/v1").split("/")[1]
    space = f"/namespaces/{SPACE}" if spec["scope"] == "Namespaced" else ""
    return f"/apis/{GROUP}/{version}{space}/{plural}"


def full(plural: str, body: Raw, name: str) -> Raw:
    spec = SCHEMAS[plural]["spec"]
    found = {"apiVersion": f"{GROUP}/v1", "kind": spec["names"]["kind"], **body}
    meta = {"name": name, **body.get("metadata", {})}
    if spec["scope"] == "Namespaced":
        meta["namespace"] = SPACE
    if not meta["name"]:
        del meta["name"]
    return {**found, "metadata": meta}


def ask(real: Real) -> Raw:
    """Every case's answer, by ``what/name``. Makes CRDs and a namespace, and takes them away."""
    found: Raw = {}
    try:
        real.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        for plural, definition in SCHEMAS.items():
            code, made, _ = real.call("POST", CRDS, definition)
            assert code == 201, (plural, made)
        for plural in SCHEMAS:
            wait(real, plural)
        for name, definition in DEFINITIONS.items():
            found[f"definition/{name}"] = real.answer("POST", CRDS, definition)
        for plural, label, body in OBJECTS:
            for mode in ("Warn", "Strict"):
                path = f"{path_of(plural, body)}?fieldValidation={mode}"
                found[f"object/{plural}/{label}/{mode}"] = real.answer("POST", path, full(plural, body, "x"))
        for number, row in enumerate(UPDATES):
            found[f"update/{row[0]}/{row[1]}"] = change(real, number)
    finally:
        for plural in SCHEMAS:
            real.call("DELETE", f"{CRDS}/{plural}.{GROUP}")
        real.call("DELETE", f"/api/v1/namespaces/{SPACE}")
    return found


def wait(real: Real, plural: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        code, _, _ = real.call("GET", path_of(plural, {}))
        if code == 200:
            return
        time.sleep(0.1)
    raise AssertionError(plural)


def change(real: Real, number: int) -> Raw:
    """What the change of that row is answered with; the object stays as it was before."""
    plural, _, before, after, subresource = UPDATES[number]
    name, path = f"u{number}", path_of(plural, before)
    code, made, _ = real.call("POST", path, full(plural, before, name))
    assert code == 201, made
    if "status" in before:
        code, made, _ = real.call("PUT", f"{path}/{name}/status", {**made, "status": before["status"]})
        assert code == 200, made
    body = full(plural, after, name)
    body["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    return real.answer("PUT", f"{path}/{name}{'/' if subresource else ''}{subresource}", body)


if __name__ == "__main__":
    with proxy(sys.argv[1], sys.argv[2]) as server:
        ANSWERS.write_text(json.dumps(ask(server), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
