"""Reads what a real API server says about its kinds, for the embedded one: ``tools/api_schemas.py KUBECTL KUBECONFIG``.

Writes ``src/kgpu/lab/embedded/data/resources.json`` (discovery) and ``schemas.json`` (types, merge keys, defaults,
required fields; no descriptions). Run it against ``kgpu lab up --real`` when the pinned Kubernetes version changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "src" / "kgpu" / "lab" / "embedded" / "data"
KEPT = {"type", "format", "properties", "items", "additionalProperties", "required", "default", "enum", "$ref"}
REF = "#/components/schemas/"


def main(kubectl: str, kubeconfig: str) -> None:
    def raw(path: str) -> Any:
        done = subprocess.run(
            [kubectl, "--kubeconfig", kubeconfig, "get", "--raw", path], check=True, capture_output=True
        )
        return json.loads(done.stdout)

    version = raw("/version")
    groups = raw("/apis")["groups"]
    lists = [raw("/api/v1"), *(raw(f"/apis/{one['groupVersion']}") for group in groups for one in group["versions"])]
    resources = [
        {"groupVersion": found["groupVersion"], **resource} for found in lists for resource in found["resources"]
    ]
    schemas: dict[str, Any] = {}
    for path in sorted(raw("/openapi/v3")["paths"]):
        if path.endswith(("/v1", "/v2", "/v1beta1", "/v1alpha1")):
            found = raw(f"/openapi/v3/{path}").get("components", {}).get("schemas", {})
            schemas.update({name: strip(schema) for name, schema in found.items()})
    write("resources.json", {"version": version["gitVersion"], "groups": groups, "resources": resources})
    write("schemas.json", dict(sorted(schemas.items())))


def strip(schema: Any) -> Any:
    """The schema without prose; a lone ``allOf`` reference becomes the reference itself."""
    if "allOf" in schema:
        (only,) = schema["allOf"]
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        return strip({**only, **rest})
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: strip(one) for name, one in value.items()}
        elif key == "$ref":
            found[key] = value.removeprefix(REF)
        elif key in {"items", "additionalProperties"} and isinstance(value, dict):
            found[key] = strip(value)
        elif key in KEPT or key.startswith("x-kubernetes-") or key in {"oneOf", "anyOf"}:
            found[key] = value
    return found


def compact(value: Any) -> str:
    """One line of JSON, keys in order."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def write(name: str, data: dict[str, Any]) -> None:
    """One line per entry of the outer tables, so that differences between versions can be read."""
    if name == "schemas.json":
        rows = (
            f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'), sort_keys=True)}"
            for key, value in data.items()
        )
        text = "{\n" + ",\n".join(rows) + "\n}"
    else:
        rows = (compact(row) for row in data["resources"])
        head = {key: value for key, value in data.items() if key != "resources"}
        text = json.dumps(head, separators=(",", ":"))[:-1] + ',\n"resources":[\n' + ",\n".join(rows) + "\n]}"
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / name).write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
