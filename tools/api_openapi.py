"""Records what a real API server publishes as OpenAPI v3: ``tools/api_openapi.py KUBECTL KUBECONFIG``.

Writes ``src/kgpu/lab/embedded/data/openapi.json.xz``: every document of the built-in groups with its descriptions, each
schema once; and how a custom kind is published, with placeholders, learned from CRDs that are made for it and removed.
The texts are those of the Kubernetes API (Apache License 2.0). Run it when the pinned Kubernetes version changes.
"""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parent.parent / "src" / "kgpu" / "lab" / "embedded" / "data" / "openapi.json.xz"
# What other parts than the API's groups publish.
SKIPPED = (".well-known/", "openid/")
GROUP, VERSION = "openapi-probe.kgpu.dev", "v7"
PROBES = {"namespaced": "Namespaced", "cluster": "Cluster"}
# In this order; what is left of the probe's names afterwards is an error.
PLACEHOLDERS = (
    (r"dev\.kgpu\.openapi-probe\.v7\.", "@MODEL@"),
    (r"openapi-probe\.kgpu\.dev", "@GROUP@"),
    (r"(?<=[/\"])v7(?=[/\"])", "@VERSION@"),
    (r"openapiProbeKgpuDev_v7", "@TAG@"),
    (r"OpenapiProbeKgpuDevV7((?:Collection)?(?:Namespaced)?)ProbeKind", r"@OPERATION@\1@NAME@"),
    (r"(create|delete) a ProbeKind", r"\1@ARTICLE@@KIND@"),
    (r"ProbeKind", "@KIND@"),
    (r"ProbeRoll", "@LIST@"),
    (r"probe(namespaced|cluster)", "@PLURAL@"),
)


def main(kubectl: str, kubeconfig: str) -> None:
    def run(*words: str, stdin: str | None = None) -> str:
        command = [kubectl, "--kubeconfig", kubeconfig, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, input=stdin).stdout

    def raw(path: str) -> Any:
        return json.loads(run("get", "--raw", path))

    schemas: dict[str, Any] = {}
    documents: dict[str, Any] = {}
    custom = probe(run, raw)
    for path in sorted(raw("/openapi/v3")["paths"]):
        if path.startswith(SKIPPED) or GROUP in path:
            continue
        found = raw(f"/openapi/v3/{path}")
        components = found.get("components", {})
        own = components.pop("schemas", {})
        for name, schema in own.items():
            assert schemas.setdefault(name, schema) == schema, f"{name} differs in {path}"
        documents[path] = {**found, "components": components, "schemas": sorted(own)}
    custom["schemas"] = {name: one for name, one in custom["schemas"].items() if schemas.get(name) != one}
    write({"documents": documents, "schemas": dict(sorted(schemas.items())), "custom": custom})


def probe(run: Any, raw: Any) -> dict[str, Any]:
    """The paths of a custom kind of either scope, and the schemas that come with them."""
    crds = [definition(plural, scope) for plural, scope in PROBES.items()]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": crds})
    found: dict[str, Any] = {}
    document: dict[str, Any] = {}
    try:
        for crd in crds:
            # One after the other: both have the same kind, which the second would not get beside the first.
            run("apply", "-f", "-", stdin=json.dumps(crd))
            plural = crd["spec"]["names"]["plural"]
            document = published(raw, plural)
            found[plural.removeprefix("probe")] = document["paths"]
            run("delete", "-f", "-", stdin=json.dumps(crd))
            gone(raw, plural)
    finally:
        run("delete", "-f", "-", "--ignore-not-found", stdin=text)
    templates = json.dumps({**found, "schemas": document["components"]["schemas"]})
    for pattern, placeholder in PLACEHOLDERS:
        templates = re.sub(pattern, placeholder, templates)
    left = re.search(r".{20}(?:probe|v7).{20}", templates, re.IGNORECASE)
    assert left is None, f"a name of the probe is left: {left[0]}"
    return {"openapi": document["openapi"], "info": document["info"], **json.loads(templates)}


def definition(name: str, scope: str) -> dict[str, Any]:
    plural = f"probe{name}"
    template = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"template": template}}
    parts = {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}
    version = {"name": VERSION, "served": True, "storage": True, "subresources": parts}
    names = {"plural": plural, "kind": "ProbeKind", "listKind": "ProbeRoll"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": names,
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def published(raw: Any, plural: str) -> Any:
    """The group's document as soon as it has the probe."""
    for _ in range(300):
        if f"apis/{GROUP}/{VERSION}" in raw("/openapi/v3")["paths"]:
            found = raw(f"/openapi/v3/apis/{GROUP}/{VERSION}")
            if any(path.endswith(f"/{plural}") for path in found["paths"]):
                return found
        time.sleep(0.1)
    raise AssertionError(f"{plural} was not published")


def gone(raw: Any, plural: str) -> None:
    """Wait until its name is free for the next."""
    for _ in range(300):
        definitions = raw("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        if all(one["metadata"]["name"] != f"{plural}.{GROUP}" for one in definitions):
            return
        time.sleep(0.1)
    raise AssertionError(f"{plural} is still there")


def write(data: dict[str, Any]) -> None:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    OUTPUT.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(*sys.argv[1:])
